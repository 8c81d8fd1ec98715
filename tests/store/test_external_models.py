"""Models that other programs keep: laid out as those programs do, found by their names, listed with what is wrong."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import families
import gguf
import gguf_files
import mmproj_files
import pytest
import towers
from console import Console

import tinychat
from tinychat import api
from tinychat.checkpoint import gguf_header
from tinychat.errors import CheckpointError, ConversionError, StoreError
from tinychat.models.vision import sees
from tinychat.store.external_models import find_model, found_models, ollama_mmproj
from tinychat.store.local import code_lines, store_folder
from tinychat.store.names import find, known_names, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIANT = families.BY_NAME["smollm2"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return gguf_files.write_variant(VARIANT, tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.fixture
def ollama(monkeypatch, tmp_path):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path / "ollama"


@pytest.fixture
def lm_studio(monkeypatch, tmp_path):
    monkeypatch.setattr("tinychat.store.external_models._LM_STUDIO_HOMES", (str(tmp_path / "studio"),))
    return tmp_path / "studio" / "models"


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def add_to_ollama(root, manifest, file, projector=None):
    """Put a file among the blobs, and a manifest that names it; return the blob."""
    blobs, layers = [], [{"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}"}]
    for kind, source in (("model", file), ("projector", projector)):
        if source is not None:
            digest = hashlib.sha256(str(source).encode()).hexdigest()
            layers.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"})
            blobs.append(root / "blobs" / f"sha256-{digest}")
            blobs[-1].parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, blobs[-1])
    path = root / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blobs[0]


def add_file(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copy(content, path)
    else:
        path.write_text(content)
    return path


def add_snapshot(root, repo_id, files):
    folder = root / f"models--{repo_id.replace('/', '--')}"
    for name, content in files.items():
        add_file(folder / "snapshots" / COMMIT / name, content)
    add_file(folder / "refs" / "main", COMMIT)
    return folder / "snapshots" / COMMIT


def test_names_of_ollama(ollama, small):
    blob = add_to_ollama(ollama, "registry.ollama.ai/library/smollm2/135m", small)
    add_to_ollama(ollama, "registry.ollama.ai/library/llama3/latest", small)
    add_to_ollama(ollama, "registry.ollama.ai/someone/theirs/v1", small)
    add_to_ollama(ollama, "hf.co/owner/name-GGUF/Q4_K_M", small)
    names = {"smollm2:135m", "llama3:latest", "someone/theirs:v1", "hf.co/owner/name-GGUF:Q4_K_M"}
    assert {model.name for model in found_models()} == names
    reference = resolve("smollm2:135m")
    assert (reference.kind, reference.source) == ("checkpoint", str(blob))
    assert reference.path.name.startswith("smollm2-135m-")
    assert resolve("llama3").source == resolve("llama3:latest").source
    assert names <= set(known_names())
    with pytest.raises(StoreError, match=r"did you mean 'smollm2:135m'"):
        resolve("smollm2:135")


@pytest.mark.parametrize("spoil", ["digest", "blob", "json", "layers"])
def test_a_manifest_that_leads_nowhere_is_left_out(spoil, ollama, small):
    blob = add_to_ollama(ollama, "registry.ollama.ai/library/a/latest", small)
    manifest = ollama / "manifests/registry.ollama.ai/library/a/latest"
    if spoil == "blob":
        blob.unlink()
    else:
        content = json.loads(manifest.read_text())
        content["layers"] = 7 if spoil == "layers" else content["layers"]
        if spoil == "digest":
            content["layers"][1]["digest"] = "sha256:../../../etc/passwd"
        manifest.write_text("{" if spoil == "json" else json.dumps(content))
    assert list(found_models()) == []


def test_a_model_of_ollama_is_converted_once(ollama, small):
    blob = add_to_ollama(ollama, "registry.ollama.ai/library/tiny/latest", small)
    assert not blob.suffix, "as Ollama names it"
    folder = api.locate("tiny")
    assert folder.parent == store_folder()
    assert api.locate("tiny:latest") == folder
    assert api.checkpoint_folder("tiny") == blob
    with pytest.raises(ConversionError, match="is a converted model"):
        api.checkpoint_folder(folder.name)


def test_a_model_of_ollama_sees_by_what_its_manifest_names(ollama, small, tmp_path):
    tower = mmproj_files.write_mmproj(towers.BY_NAME["odd"], tmp_path / "tower", clip__projector_type="pixtral")
    blob = add_to_ollama(ollama, "registry.ollama.ai/library/alone/latest", small)
    name = resolve("alone").path
    assert ollama_mmproj(blob) is None
    assert add_to_ollama(ollama, "hf.co/owner/seeing-GGUF/Q8_0", small, tower) == blob
    found = ollama_mmproj(blob)
    assert (found.parent, found.read_bytes()) == (blob.parent, tower.read_bytes())
    assert resolve("alone").path != name
    assert ollama_mmproj(found) is ollama_mmproj(small) is None
    digest = found.name.removeprefix("sha256-")
    reason = f"text only: sha256-{digest}: projector 'pixtral' is not supported"
    assert code_lines(api.locate("hf.co/owner/seeing-GGUF:Q8_0"))[0] == reason
    made = tinychat.convert("alone", tmp_path / "made", quant="int8", method="plain", check=False)
    assert code_lines(made)[0] == reason
    # One that cannot be read: nobody asked for it by its path.
    found.write_bytes(b"GGUF")
    lines = code_lines(tinychat.convert("alone", tmp_path / "text", quant="int8", method="plain", check=False))
    assert lines[0].startswith(f"text only: sha256-{digest}")
    assert str(found.parent) not in lines[0]
    with pytest.raises(CheckpointError, match=digest):
        tinychat.convert("alone", tmp_path / "asked", quant="int8", method="plain", check=False, mmproj=found)
    found.unlink()
    assert ollama_mmproj(blob) is None


def test_a_model_of_ollama_that_sees(ollama, tmp_path):
    seeing = towers.BY_NAME["means"]
    text = gguf_files.like("gemma3", query_pre_attn_scalar=40, sliding_window_pattern=6, rope_local_base_freq=1e4)
    model = gguf_files.write_variant(text, tmp_path / "model.gguf", special={300: "<image_soft_token>"})
    tower = mmproj_files.write_mmproj(seeing, tmp_path / "tower")
    add_to_ollama(ollama, "hf.co/owner/gemma/Q8_0", model, tower)
    made = tinychat.convert("hf.co/owner/gemma:Q8_0", tmp_path / "made", quant="int8", method="plain", check=False)
    assert sees(made)
    assert sees(api.locate("hf.co/owner/gemma:Q8_0"))


def test_names_of_lm_studio(lm_studio, small, tmp_path):
    alone = add_file(lm_studio / "someone" / "one-GGUF" / "one-Q8_0.gguf", small)
    add_file(alone.with_name("mmproj-one.gguf"), small)
    both = [add_file(lm_studio / "someone" / "two-GGUF" / f"two-{kind}.gguf", small) for kind in ("Q4_0", "Q8_0")]
    split = [add_file(lm_studio / "a" / "s" / f"s-0000{i}-of-00002.gguf", small) for i in (1, 2)]
    mlx = families.write_checkpoint(VARIANT, lm_studio / "mlx-community" / "small")
    expected = {
        "someone/one-GGUF": alone,
        "someone/two-GGUF/two-Q4_0.gguf": both[0],
        "someone/two-GGUF/two-Q8_0.gguf": both[1],
        "a/s": split[0],
        "mlx-community/small": mlx,
    }
    assert {model.name: model.path for model in found_models()} == expected
    assert find_model("a/s").bytes() == sum(part.stat().st_size for part in split)
    assert find("someone/one-GGUF").kind == find("mlx-community/small").kind == "checkpoint"
    elsewhere = add_file(tmp_path / "elsewhere" / "p" / "r" / "x.gguf", small)
    add_file(lm_studio.parent / "settings.json", json.dumps({"downloadsFolder": str(tmp_path / "elsewhere")}))
    assert {model.path for model in found_models()} == {elsewhere}


def test_names_of_the_hubs_cache(hub_cache, small, monkeypatch):
    checkpoint = families.write_checkpoint(VARIANT, hub_cache.parent / "checkpoint")
    whole = {path.name: path for path in checkpoint.iterdir()}
    snapshot = add_snapshot(hub_cache, "owner/whole", whole)
    add_snapshot(hub_cache, "owner/half", {name: path for name, path in whole.items() if name != "model.safetensors"})
    add_snapshot(hub_cache, "owner/some-GGUF", {"some.gguf": small})
    other = json.dumps({"architectures": ["UnknownModel"]})
    add_snapshot(hub_cache, "owner/unknown", {**whole, "config.json": other})
    assert {model.name: model.path.name for model in found_models()} == {
        "owner/whole": snapshot.name,
        "owner/some-GGUF": "some.gguf",
    }
    # The hub's client sees to its own cache.
    assert resolve("owner/whole").kind == "repository"
    assert resolve("owner/some-GGUF").kind == "checkpoint"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(hub_cache.parent))
    assert find_model("owner/whole") is not None


def test_shards_must_all_be_there(hub_cache):
    checkpoint = families.write_checkpoint(families.BY_NAME["llama2-gqa"], hub_cache.parent / "sharded")
    snapshot = add_snapshot(hub_cache, "owner/sharded", {path.name: path for path in checkpoint.iterdir()})
    assert find_model("owner/sharded") is not None
    next(snapshot.glob("model-00002*")).unlink()
    assert find_model("owner/sharded") is None


def test_what_is_nearer_goes_first(ollama, lm_studio, hub_cache, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add_snapshot(hub_cache, "owner/name", {"some.gguf": small})
    assert "hub" in resolve("owner/name").source
    add_file(lm_studio / "owner" / "name" / "some.gguf", small)
    assert "studio" in resolve("owner/name").source
    add_to_ollama(ollama, "registry.ollama.ai/library/small/latest", small)
    assert "ollama" in resolve("small").source
    add_file(store_folder() / "small" / "tinychat.json", "{}")
    assert resolve("small").kind == "stored"
    add_file(Path("owner/name/config.json"), "{}")
    assert resolve("owner/name").source == "owner/name"


def test_the_list_marks_them_and_says_what_cannot_be_used(ollama, hub_cache, small, monkeypatch, capsys, tmp_path):
    add_file(store_folder() / "mine" / "tinychat.json", "{}")
    add_to_ollama(ollama, "registry.ollama.ai/library/good/latest", small)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "t5")
    gguf_files.write(writer)
    add_to_ollama(ollama, "registry.ollama.ai/library/other/latest", tmp_path / "other.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0")
    add_to_ollama(ollama, "registry.ollama.ai/library/broken/latest", tmp_path / "broken.gguf")
    config = {"architectures": ["UnknownForCausalLM"]}
    add_snapshot(hub_cache, "owner/unknown", {"config.json": json.dumps(config), "model.safetensors": "x"})
    code, out, err = Console(None, monkeypatch, capsys).run("models")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert (code, err.count("\n")) == (0, 1)
    del lines["demo"]
    assert list(lines) == ["mine", "broken:latest", "good:latest", "other:latest", "owner/unknown"]
    assert lines["good:latest"].endswith("in Ollama")
    assert "GGUF" in lines["good:latest"]
    assert "in Ollama, cannot be used: architecture 't5' is not supported" in lines["other:latest"]
    assert "cannot be used: ends within its header" in lines["broken:latest"]
    assert "in the hub's cache, cannot be used: architecture 'UnknownForCausalLM' is" in lines["owner/unknown"]
    assert all(len(line) < 160 for line in lines.values())


def test_a_damaged_file_hides_no_other(ollama, small, monkeypatch, capsys, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "listed.gguf", "llama")
    writer.kv_data[0]["general.architecture"] = gguf.GGUFValue(["llama"], gguf.GGUFValueType.ARRAY)
    gguf_files.write(writer)
    add_to_ollama(ollama, "registry.ollama.ai/library/listed/latest", tmp_path / "listed.gguf")
    add_to_ollama(ollama, "registry.ollama.ai/library/good/latest", small)
    odd = add_to_ollama(ollama, "registry.ollama.ai/library/odd/latest", shutil.copy(small, tmp_path / "odd.gguf"))

    def read(path):
        return [][0] if path == odd else beginning(path)

    beginning = gguf_header.read_beginning
    monkeypatch.setattr(gguf_header, "read_beginning", read)
    code, out, _ = Console(None, monkeypatch, capsys).run("models")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert lines["odd:latest"].endswith("in Ollama, cannot be used: damaged")
    assert lines["good:latest"].endswith("in Ollama")
    assert "cannot be used: architecture" in lines["listed:latest"]


def test_no_name_commands_the_terminal(ollama, lm_studio, hub_cache, small, monkeypatch, capsys):
    """Escape sequences, bidirectional marks and line breaks, in every part of a name."""
    for bad in ("\x1b[2J", "\u202e", "\x9b31m", "a\nb", "\udcff"):
        add_to_ollama(ollama, f"host{bad}/library/one/latest", small)
        add_to_ollama(ollama, f"registry.ollama.ai/space{bad}/one/latest", small)
        add_to_ollama(ollama, f"registry.ollama.ai/library/one{bad}/latest", small)
        add_to_ollama(ollama, f"registry.ollama.ai/library/one/tag{bad}", small)
        add_file(lm_studio / f"publisher{bad}" / "one" / "one.gguf", small)
        add_file(lm_studio / "publisher" / f"one{bad}" / "one.gguf", small)
        add_file(lm_studio / "publisher" / "one" / f"one{bad}.gguf", small)
        add_snapshot(hub_cache, f"owner{bad}/one", {"one.gguf": small})
    good = add_file(lm_studio / "publisher" / "good" / "one.gguf", small)
    assert [model.path for model in found_models()] == [good]
    console = Console(None, monkeypatch, capsys)
    for command in ("models", "models --json", "show publisher:good"):
        _, out, err = console.run(*command.split())
        assert (out + err).replace("\n", "").isprintable()
    monkeypatch.setenv("_TINYCHAT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "tinychat chat pub")
    monkeypatch.setenv("COMP_CWORD", "2")
    _, out, _ = console.run()
    assert out.splitlines() == ["plain,publisher/good"]


def test_what_a_file_says_is_shown_escaped(ollama, monkeypatch, capsys, tmp_path):
    gguf_files.write(gguf.GGUFWriter(tmp_path / "evil.gguf", "\x1b[2J\u202e"))
    add_to_ollama(ollama, "registry.ollama.ai/library/evil/latest", tmp_path / "evil.gguf")
    _, out, _ = Console(None, monkeypatch, capsys).run("models")
    assert r"architecture '\\x1b[2J\\x202e' is not supported" in out


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("models/small", "there is no folder small in models here; .* `tinychat pull models/small`$"),
        ("else/model.gguf", r"there is no file else/model\.gguf here"),
    ],
)
def test_a_missing_path_is_told_before_the_network_is_asked(model, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("models")
    with pytest.raises(StoreError, match=reason):
        find(model)
    assert resolve("owner/name").kind == "repository"
    add_file(store_folder() / model.replace("/", "--") / "tinychat.json", "{}")
    assert find(model).kind == "stored", "it was pulled before"
