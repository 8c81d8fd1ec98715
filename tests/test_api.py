import json
import shutil
import subprocess
import sys
from contextlib import contextmanager

import families
import pytest

from tinychat import api
from tinychat.conversion import pipeline
from tinychat.errors import ConversionError, StoreError, TextError, TinychatError
from tinychat.store import hub, names
from tinychat.store.local import store_folder


@pytest.fixture
def conversions(monkeypatch):
    """Replace the conversion by one that only notes what it was asked for."""
    calls = []

    def make(src, dst, recipe, progress, source, for_store=False):
        assert recipe == pipeline.Recipe()
        calls.append((src, source))
        dst.mkdir(parents=True)
        (dst / "tinychat.json").write_text(json.dumps({"format": 2}))

    monkeypatch.setattr(pipeline, "make", make)
    monkeypatch.setattr(api, "check_checkpoint", lambda folder: None)
    return calls


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_folder_is_itself(tmp_path, conversions):
    (tmp_path / "tinychat.json").write_text("{}")
    assert api.locate(str(tmp_path)) == tmp_path
    assert conversions == []


def test_a_checkpoint_is_converted_once_into_the_store(checkpoint, conversions):
    folder = api.locate(str(checkpoint))
    assert folder.parent == store_folder()
    assert api.locate(str(checkpoint)) == folder
    assert conversions == [(checkpoint, str(checkpoint))]


def test_a_pull_in_a_format_has_a_folder_of_its_own(checkpoint, monkeypatch, tmp_path):
    asked = []

    def make(src, dst, recipe, progress, source, for_store=False):
        asked.append((dst.name, recipe))
        dst.mkdir(parents=True)
        (dst / "tinychat.json").write_text(json.dumps({"format": 2}))

    monkeypatch.setattr(pipeline, "make", make)
    monkeypatch.setattr(api, "check_checkpoint", lambda folder: None)
    serve(monkeypatch, lambda repo_id: checkpoint)
    for quant in (None, "int8", "int8", "kept", "native"):
        api.pull("owner/name", quant=quant)
    assert asked == [
        ("owner--name", pipeline.Recipe()),
        ("owner--name-int8", pipeline.Recipe("int8")),
        ("owner--name-native", pipeline.Recipe("native")),
    ]


def test_a_pull_finds_native_codes_that_an_earlier_version_has_named_kept(monkeypatch):
    stored = store_folder() / "owner--name-kept"
    stored.mkdir(parents=True)
    (stored / "tinychat.json").write_text(json.dumps({"format": 3}))
    serve(monkeypatch, lambda repo_id: pytest.fail("converted again"))
    assert api.pull("owner/name", quant="native") == api.pull("owner/name", quant="kept") == stored


FIRST_USE = """
import sys
from tinychat.api import locate
print(locate(sys.argv[1]))
"""


@pytest.mark.slow
def test_two_first_uses_at_once_convert_once(tmp_path):
    """Both get the model folder; the second takes what the first has made."""
    folder = families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path / "checkpoint")
    command = [sys.executable, "-c", FIRST_USE, str(folder)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert len({out for out, _ in results}) == 1
    made = store_folder() / results[0][0].strip()
    assert list(store_folder().iterdir()) == [made]


def test_whoever_waits_for_a_conversion_shows_it(checkpoint, conversions, monkeypatch):
    shown, place = [], names.find(str(checkpoint)).path

    @contextmanager
    def locked_after_another(path, waiting):
        waiting()
        place.mkdir()
        (place / "tinychat.json").write_text("{}")
        yield

    monkeypatch.setattr(api, "locked", locked_after_another)
    assert api.locate(str(checkpoint), lambda done, total: shown.append((done, total))) == place
    assert (conversions, shown) == ([], [(0, 1)])


def test_a_model_is_never_written_to_a_folder_named_by_a_tilde(checkpoint, conversions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConversionError, match="~no-such-user/x cannot be written: the home folder is not known"):
        api.convert(checkpoint, "~no-such-user/x")


def serve(monkeypatch, folder_of):
    """Let `folder_of` give the checkpoint folder of a repository."""

    @contextmanager
    def fetching(repo_id, before_weights):
        yield folder_of(repo_id), hub.Arrivals(repo_id, folder_of(repo_id), {})

    monkeypatch.setattr(hub, "fetch", folder_of)
    monkeypatch.setattr(hub, "fetching", fetching)


def test_a_repository_is_downloaded_and_converted_once(checkpoint, conversions, monkeypatch):
    serve(monkeypatch, lambda repo_id: checkpoint)
    folder = api.locate("owner/name")
    assert folder == store_folder() / "owner--name"
    assert api.locate("owner/name") == api.locate("owner--name") == folder
    assert conversions == [(checkpoint, "owner/name")]


def test_a_tokenizer_that_cannot_be_used_is_refused_before_the_weights_arrive(checkpoint, tmp_path, monkeypatch):
    (checkpoint / "tokenizer.json").write_text("{")

    @contextmanager
    def fetching(repo_id, before_weights):
        before_weights(checkpoint, 1, tmp_path)
        yield pytest.fail("weights were downloaded")

    monkeypatch.setattr(hub, "fetching", fetching)
    with pytest.raises(TextError, match=r"tokenizer\.json: cannot be read"):
        api.locate("owner/name")


def test_no_model_means_the_demo_model(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "_DEMO_FOLDERS", (tmp_path / "none", tmp_path / "demo"))
    with pytest.raises(StoreError, match="no demo model"):
        api.locate(None)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "tinychat.json").write_text("{}")
    assert api.locate(None) == api.locate("demo") == tmp_path / "demo"


def test_a_stored_model_may_be_called_demo(checkpoint, conversions):
    shutil.copytree(checkpoint, store_folder() / "demo")
    (store_folder() / "demo" / "tinychat.json").write_text("{}")
    assert api.locate("demo") == store_folder() / "demo"


def test_a_conversion_starts_from_a_folder_or_a_repository(checkpoint, monkeypatch):
    serve(monkeypatch, lambda repo_id: checkpoint / repo_id)
    assert api.checkpoint_folder(str(checkpoint)) == checkpoint
    assert api.checkpoint_folder("owner/name") == checkpoint / "owner/name"


def test_a_repository_in_the_store_can_be_converted_again(checkpoint, conversions, monkeypatch):
    serve(monkeypatch, lambda repo_id: checkpoint)
    api.locate("owner/name")
    assert api.checkpoint_folder("owner/name") == checkpoint
    with pytest.raises(ConversionError, match="converted model"):
        api.checkpoint_folder("owner--name")


def test_pull_means_the_repository_whatever_folders_there_are(checkpoint, conversions, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, tmp_path / "owner" / "name")
    (tmp_path / "owner" / "name" / "tinychat.json").write_text("{}")
    serve(monkeypatch, lambda repo_id: checkpoint)
    assert api.pull("owner/name") == store_folder() / "owner--name"
    assert conversions == [(checkpoint, "owner/name")]
    for name in ("nothing", "./owner/name", "a/b/c"):
        with pytest.raises(StoreError, match="is not a repo id: give one of the form owner/name"):
            api.pull(name)


def test_a_store_that_cannot_be_written_is_told_before_the_download(conversions, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cannot be written: Not a directory; .*TINYCHAT_HOME"):
        api.pull("owner/name")


def test_convert_takes_what_the_command_takes(monkeypatch, tmp_path):
    folder = families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path / "checkpoint")
    monkeypatch.setenv("HOME", str(tmp_path))
    serve(monkeypatch, lambda repo_id: folder)
    seen = []
    local = api.convert("~/checkpoint", "~/local", "int8", 64, progress=lambda done, total: seen.append(done))
    assert (local, bool(seen)) == (tmp_path / "local", True)
    assert json.loads((local / "tinychat.json").read_text())["source"] == "checkpoint"
    fetched = api.convert("owner/name", tmp_path / "fetched", method="plain", check=False)
    assert json.loads((fetched / "tinychat.json").read_text())["source"] == "owner/name"
    with pytest.raises(ConversionError, match="converted already"):
        api.convert(local, tmp_path / "again")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        api.convert(folder, tmp_path / "mute")
    assert not (tmp_path / "mute").exists()


def test_damaged_gguf_files_are_told_by_their_names(tmp_path):
    (tmp_path / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
    (tmp_path / "renamed").write_bytes(b"GGUF and more")
    for path, name in (tmp_path, "model.Q4_K_M.gguf"), (tmp_path / "renamed", "renamed"):
        with pytest.raises(TinychatError, match=f"{name} (ends|has version)"):
            api.locate(str(path))
        with pytest.raises(TinychatError, match=f"{name} (ends|has version)"):
            api.convert(path, tmp_path / "made")


def test_a_converted_model_is_no_checkpoint(tmp_path):
    (tmp_path / "tinychat.json").write_text("{}")
    with pytest.raises(ConversionError, match="converted already"):
        api.checkpoint_folder(str(tmp_path))


@pytest.mark.parametrize("name", ["~no-such-user/x", "x" * 5000, "a\0b"])
@pytest.mark.parametrize("find", [api.locate, api.checkpoint_folder, api.load])
def test_impossible_names_are_errors_of_one_line(name, find, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TinychatError) as caught:
        find(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
