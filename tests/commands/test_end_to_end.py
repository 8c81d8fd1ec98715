"""The whole way on the real command line: a checkpoint is converted, completes, chats, is measured, listed, removed."""

import io
import json
import shutil
import sys

import families
import pytest

from tinychat.cli import main

VARIANT = families.BY_NAME["qwen2-tied"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return families.write_checkpoint(VARIANT, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "reference"
    assert main(["convert", str(checkpoint), str(folder), "--quant", "f32"]) == 0
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs a command, which must succeed, and returns its stdout."""

    def run_command(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run_command


def test_convert_writes_what_the_flags_say(run, checkpoint, tmp_path):
    assert run("convert", checkpoint, tmp_path / "model", "--quant", "int8", "--group-size", "64") == ""
    description = json.loads((tmp_path / "model" / "tinychat.json").read_text())
    assert description["quantization"] == {"method": "int8", "group_size": 64, "int8": [], "frequent": 0}
    assert description["certificate"]["texts"]["text"]["kl"] < 0.05
    assert description["source"] == checkpoint.name


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--quant f32 --method gptq", "--method does nothing beside quant f32"),
        ("--quant native --group-size 32", "--group-size does nothing beside quant native"),
        ("--quant kept --group-size 32", "--group-size does nothing beside quant native"),
        ("--quant int8 --bits auto", "--bits does nothing beside quant int8"),
        ("--method plain --calibration text", "--calibration does nothing beside method plain"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(capsys, checkpoint, tmp_path, flags, problem):
    assert main(["convert", str(checkpoint), str(tmp_path / "model"), *flags.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {problem}: leave one of them out")


def test_a_checkpoint_gives_the_same_folder_wherever_it_lies(run, checkpoint, tmp_path):
    moved = shutil.copytree(checkpoint, tmp_path / "elsewhere" / checkpoint.name)
    run("convert", checkpoint, tmp_path / "first")
    run("convert", moved, tmp_path / "second")
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "second").iterdir())
    for name in files:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_checkpoint_completes_and_then_lies_in_the_store(run, checkpoint):
    prompt = ["-p", "Once upon a time", "--temperature", "0", "--max-tokens", "12"]
    first = run("complete", checkpoint, *prompt)
    made, demo = run("models").splitlines()
    name, method, *_, source = made.split()
    assert name.startswith(checkpoint.name)
    assert (method, source) == ("int4", str(checkpoint))
    assert run("complete", name, *prompt) == first
    run("rm", name)
    assert [line.split() for line in run("models").splitlines()] == [demo.split()]


def test_complete_gives_the_ids_that_python_gives(run, model):
    import tinychat

    loaded = tinychat.load(model, context=64)
    expected = loaded.generate(loaded.encode("abc"), max_tokens=10)
    out = run("complete", model, "-p", "abc", "--temperature", "0", "--max-tokens", "10", "--context", "64", "--json")
    assert json.loads(out)["token_ids"] == expected


def test_sampling_is_repeatable_whatever_the_threads(run, model):
    command = ["complete", model, "-p", "abc", "--seed", "5", "--max-tokens", "20"]
    texts = {run(*command, "--threads", threads) for threads in (1, 2)}
    assert len(texts) == 1


def test_a_conversation_by_pipe(run, model):
    replies = run("chat", model, "--max-tokens", "5", "--seed", "1", stdin=b"hello\n/undo\nhello\n")
    assert replies
    assert "\x1b" not in replies


def test_perplexity_ends_with_one_json_object(run, model, checkpoint, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was a dark and stormy night. " * 5, encoding="utf-8")
    *_, last = run("perplexity", checkpoint, text, "--against", model, "--context", "64", "--stride", "16").splitlines()
    found = json.loads(last)
    assert (found["context"], found["stride"], found["reference"]) == (64, 16, "reference")
    # One byte, one token, and all but the first are predicted unless the model begins texts by a token.
    assert found["tokens"] in (159, 160)
    assert 1 < found["perplexity"] < 1e6
    assert 0 < found["against"]["kl_divergence"] < 1
    # Weights drawn at random have no preference: many tokens are all but equally likely.
    assert 0.2 < found["against"]["top1_agreement"] <= 1
    *_, last = run("perplexity", model, text, "--against", model).splitlines()
    assert json.loads(last)["against"]["kl_divergence"] == 0
