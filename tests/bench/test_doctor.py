import json
import os
import shutil

import families
import gguf_files
import pytest
from tools.family_templates import CONTENT_ONLY, TEMPLATES

from tinychat import machine
from tinychat.cli import main
from tinychat.conversion.convert import convert
from tinychat.engine.blocks import bytes_per_position
from tinychat.models.architectures import read_config
from tinychat.store.local import store_folder
from tinychat.text.hard_texts import HARD_TEXTS
from tinychat.text.loading import load_tokenizer

VARIANT = families.BY_NAME["llama2-gqa"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return families.write_checkpoint(VARIANT, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def folder(checkpoint, tmp_path):
    return convert(checkpoint, tmp_path / "model")


def doctor(capsys, *arguments):
    """Return (exit code, lines by their name, stderr) of the command."""
    code = main(["doctor", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, dict(reversed([(line.split("  ", 1) + [""])[:2] for line in out.splitlines()])), err


def test_the_machine(capsys):
    code, lines, err = doctor(capsys)
    assert (code, err) == (0, "")
    assert {"versions", "processor", "instruction set", "memory", "kernel cache", "store"} <= set(lines)
    assert "numba" in lines["versions"]
    assert os.environ["TINYCHAT_HOME"] in lines["store"]
    assert " (0 models, " in lines["store"]
    (store_folder() / "story").mkdir(parents=True)
    (store_folder() / "story" / "tinychat.json").write_text("{}")
    assert " (1 model, " in doctor(capsys)[1]["store"]


def test_the_machine_ends_with_how_to_examine_the_bundled_model(capsys):
    assert main(["doctor"]) == 0
    assert "`tinychat doctor demo`" in capsys.readouterr().out.splitlines()[-1]


def test_the_bundled_model(folder, capsys, monkeypatch):
    monkeypatch.setattr("tinychat.store.names._DEMO_FOLDERS", (folder,))
    code, lines, err = doctor(capsys, "demo")
    assert (code, err) == (0, "")
    assert str(folder) in lines["model"]
    assert "memory needed" in lines


def test_the_memory_of_another_cache(folder, capsys):
    config = read_config(folder / "config.json")
    code, lines, _ = doctor(capsys, folder, "--context", 100_000, "--kv", "int8")
    assert code == 1
    assert lines["problem"].strip().endswith("its replies may lose their sense: give --context 256 or less")
    assert lines["context"].strip() == "100000 tokens; trained 256"
    size = bytes_per_position(config, "int8") * 100_000 / 2**20
    assert f"{size:.0f} MiB for a full context in int8" in lines["memory needed"]
    _, usual, _ = doctor(capsys, folder)
    assert "in f16" in usual["memory needed"]


def test_a_cache_that_no_model_has(folder, capsys):
    code, _, err = doctor(capsys, folder, "--context", 1 << 30)
    assert (code, "--context must be between 1 and 1048576" in err) == (2, True)
    assert doctor(capsys, "--context", 100)[0] == 2


@pytest.mark.parametrize("kind", ["checkpoint", "folder"])
def test_a_sound_model(kind, capsys, request):
    code, lines, err = doctor(capsys, request.getfixturevalue(kind))
    assert (code, err) == (0, "")
    assert kind in lines["model"]
    assert "LlamaForCausalLM" in lines["architecture"]
    assert "int4" in lines["weights"]
    assert "memory needed" in lines
    assert "problem" not in lines


def test_a_model_that_is_not_there_yet(capsys):
    code, lines, _ = doctor(capsys, "owner/name")
    assert code == 0
    assert "tinychat pull owner/name" in lines["state"]
    assert doctor(capsys, "nothing")[0] == 1


@pytest.mark.parametrize(
    ("name", "message"), [("model.safetensors", "is damaged"), ("tokenizer.json", "tokenizer"), ("config.json", "JSON")]
)
def test_what_is_wrong_with_a_model(name, message, folder, capsys):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    code, lines, err = doctor(capsys, folder)
    assert code == 1
    assert message in lines["problem"]
    assert err == "error: 1 problem(s) found: see above\n"


def test_what_the_tokenizer_and_the_template_do(checkpoint, tmp_path, capsys):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text()) | {"eos_token_id": [2, 7]}
    (copy / "config.json").write_text(json.dumps(config))
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    (copy / "chat_template.jinja").write_text(template)
    assert main(["doctor", str(copy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line[:15].strip(): line[15:].strip() for line in lines}
    assert (
        found["round trip"]
        == f"{len(HARD_TEXTS)} of {len(HARD_TEXTS)} hard texts are the same once encoded and decoded"
    )
    tokenizer = load_tokenizer(copy)
    assert found["stop tokens"] == (
        f"2 '</s>' (the tokenizer, the chat template, config.json); 7 {tokenizer.piece(7)!r} (config.json)"
    )
    assert found["template"] == "'<s>user: Hi</s><s>assistant: Hello!</s><s>user: ?</s>'"
    assert found["plain one"] == r"'User: Hi\nAssistant: Hello!\nUser: ?\nAssistant:'"
    prompted = "the template knows none: a system prompt tells of them; calls begin with <tool_call> (JSON)"
    assert found["tools"] == prompted


def test_how_a_model_is_told_of_tools(checkpoint, tmp_path, capsys):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    line = "the template tells of them; calls begin with <|tool_call_start|> (Python)"
    told = {TEMPLATES["lfm2"]: line, CONTENT_ONLY: f"{line}, which it leaves in the text"}
    for template, line in told.items():
        (copy / "chat_template.jinja").write_text(template)
        assert main(["doctor", str(copy)]) == 0
        found = {line[:15].strip(): line[15:].strip() for line in capsys.readouterr().out.splitlines()}
        assert found["tools"] == line


def test_texts_that_a_tokenizer_changes_are_shown(checkpoint, tmp_path, capsys):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    settings = json.loads((copy / "tokenizer.json").read_text()) | {"normalizer": {"type": "NFC"}}
    (copy / "tokenizer.json").write_text(json.dumps(settings))
    assert main(["doctor", str(copy)]) == 0, "it is how the model was trained"
    out = capsys.readouterr().out
    assert f"{len(HARD_TEXTS) - 1} of {len(HARD_TEXTS)} hard texts" in out
    assert "becomes 'é and é, ﬁ and fi, Å'" in out


def test_a_gguf_file(tmp_path, capsys):
    file = gguf_files.write_variant(VARIANT, tmp_path / "model.gguf")
    assert main(["doctor", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"{file} (checkpoint)" in out
    assert "int8" in out, "a small one is kept in eight bits"
    assert "problem" not in out


def test_an_incomplete_checkpoint(checkpoint, tmp_path, capsys):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    next(copy.glob("model-00002*")).unlink()
    code, lines, _ = doctor(capsys, copy)
    assert code == 1
    assert "model-00002" in lines["problem"]


def test_too_little_memory_is_a_problem(folder, capsys, monkeypatch):
    monkeypatch.setattr("tinychat.bench.doctor.available_memory_bytes", lambda: 100 << 20)
    code, lines, _ = doctor(capsys, folder)
    assert code == 1
    assert "100 MiB are available" in lines["problem"]


def test_the_machine_in_words_and_numbers():
    assert machine.processor_name()
    total, free = machine.memory_bytes(), machine.available_memory_bytes()
    assert total is None or total > 1 << 28
    assert None in (total, free) or 0 < free <= total
