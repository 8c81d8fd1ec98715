"""What users may give by mistake, on the real command line: one line, the right exit code, nothing left behind."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys

import families
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tinychat.cli import main
from tinychat.conversion.pack import pack_linear

WEIGHTS = "model.safetensors"
LAYER = "model.layers.1."
COMPILING = "compiling kernels for this CPU (once for models of this kind)"


@pytest.fixture(autouse=True)
def empty_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path_factory.mktemp("sound"))


@pytest.fixture
def checkpoint(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def model(sound, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    assert main(["convert", str(sound), str(folder)]) == 0
    return folder


def set_config(**values):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return change


def set_tensor(name, make):
    def change(folder):
        tensors = load_file(folder / WEIGHTS)
        tensors[name] = make(tensors[name])
        save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)

    return change


def set_bytes(name, make):
    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(make(data))

    return change


def put_first(value):
    def make(tensor):
        tensor.flat[0] = value
        return tensor

    return make


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds neither"),
    "empty config": (set_bytes("config.json", lambda data: b""), "config.json is not valid JSON"),
    "unknown architecture": (set_config(architectures=["GPT2LMHeadModel"]), "'GPT2LMHeadModel' is not supported"),
    "absurd size": (set_config(hidden_size=10**9), "hidden_size is 1000000000"),
    "absurd text": (set_config(rms_norm_eps="small"), "rms_norm_eps is 'small'"),
    "heads that do not divide": (set_config(num_attention_heads=7), "num_attention_heads"),
    "quantized already": (set_config(quantization_config={"quant_method": "bitsandbytes"}), "bitsandbytes"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "safetensors"),
    "empty weights": (set_bytes(WEIGHTS, lambda data: b""), "truncated or not safetensors"),
    "truncated weights": (set_bytes(WEIGHTS, lambda data: data[: len(data) // 2]), "truncated"),
    "lying header": (set_bytes(WEIGHTS, lambda data: (10**15).to_bytes(8, "little") + data[8:]), "truncated"),
    "random bytes": (set_bytes(WEIGHTS, lambda data: bytes(range(256)) * 40), "safetensors"),
    "missing tensor": (set_tensor(LAYER + "mlp.up_proj.weight", lambda tensor: None), "has no tensor"),
    "wrong shape": (set_tensor("model.norm.weight", lambda tensor: tensor[1:].copy()), "has shape"),
    "NaN": (set_tensor(LAYER + "self_attn.o_proj.weight", put_first(np.nan)), "not finite"),
    "infinity": (set_tensor(LAYER + "input_layernorm.weight", put_first(np.inf)), "not finite"),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "no tokenizer.json, tokenizer.model or tiktoken.model",
    ),
    "broken tokenizer": (set_bytes("tokenizer.json", lambda data: data[: len(data) // 2]), "tokenizer.json"),
    "broken template": (lambda folder: (folder / "chat_template.jinja").write_text("{% if"), "does not compile"),
}


def failure_of(capsys, *arguments):
    """Run a command that fails; return its exit code and its one line."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    *before, last = err.splitlines()
    assert set(before) <= {"converting", f"converting {arguments[1]} (once)", COMPILING}
    assert last.startswith("error: ")
    assert last.isprintable()
    assert len(last) < 500
    return code, last


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("command", ["convert", "complete"])
def test_a_bad_checkpoint(command, damage, message, checkpoint, tmp_path, capsys):
    damage(checkpoint)
    rest = [tmp_path / "out" / "model"] if command == "convert" else ["-p", "x"]
    code, line = failure_of(capsys, command, checkpoint, *rest)
    assert code == 1
    assert message in line or "config.json does not exist" in line
    assert not list(tmp_path.glob("out/*"))
    assert not list(tmp_path.glob("out/.*"))
    store = os.path.join(os.environ["TINYCHAT_HOME"], "models")
    assert not os.path.isdir(store) or os.listdir(store) == []


@pytest.mark.parametrize("target", ["taken", "file/below"])
def test_a_target_that_cannot_be_written(target, sound, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    code, line = failure_of(capsys, "convert", sound, tmp_path / target)
    assert code == 1
    assert "choose another target" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


MODEL_DAMAGES = {
    "empty weights": (set_bytes(WEIGHTS, lambda data: b""), "is damaged"),
    "other weights": (set_bytes(WEIGHTS, lambda data: data[:9] + b"!" + data[10:]), "is damaged"),
    "newer format": (set_bytes("tinychat.json", lambda data: b'{"format": 99}'), "says format 99"),
    "no description": (set_bytes("tinychat.json", lambda data: b"[]"), "must hold a JSON object"),
    "other layers": (set_config(num_hidden_layers=1), "is damaged"),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "no tokenizer.json, tokenizer.model or tiktoken.model",
    ),
}


@pytest.mark.parametrize(("damage", "message"), MODEL_DAMAGES.values(), ids=MODEL_DAMAGES)
def test_a_bad_model_folder(damage, message, model, tmp_path, capsys):
    folder = shutil.copytree(model, tmp_path / "model")
    damage(folder)
    code, line = failure_of(capsys, "complete", folder, "-p", "x")
    assert code == 1
    assert message in line


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ["-p", "x" * 300, "--context", "256"],
            1,
            "holds 256: shorten it (the model was trained on 256 tokens at most)",
        ),
        (["-p", "x", "--context", "0"], 2, "--context must be between 1 and 1048576"),
        (["-p", "x", "--context", "99999999"], 2, "--context must be between 1 and 1048576"),
        (["-p", "x", "--threads", "0"], 2, "--threads must be between 1 and 1024"),
        (["-p", "x", "--threads", "99999"], 2, "--threads must be between 1 and 1024"),
        (["-p", "x", "--kv", "f64"], 2, "--kv must be one of"),
    ],
)
def test_a_bad_setting(flags, code, message, model, capsys):
    found, line = failure_of(capsys, "complete", model, *flags)
    assert found == code
    assert message in line


def test_a_context_beyond_the_training_is_warned_of(model, capsys):
    flags = ["-p", "x", "--max-tokens", "1"]
    assert main(["complete", str(model), *flags, "--context", "300"]) == 0
    assert "trained on 256 tokens at most: in a context of 300 its replies may lose" in capsys.readouterr().err
    assert main(["complete", str(model), *flags, "--context", "256"]) == 0
    assert "trained" not in capsys.readouterr().err


@pytest.mark.parametrize(("stdin", "code"), [(b"", 2), (bytes(range(256)), 1)], ids=["empty", "binary"])
def test_a_bad_stdin(stdin, code, model):
    command = [sys.executable, "-m", "tinychat", "complete", model]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_early(model):
    command = [sys.executable, "-m", "tinychat", "complete", model, "-p", "x", "--max-tokens", "200"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(timeout=60), err.replace(f"{COMPILING}\n", "")) == (0, "")


def test_ctrl_c_while_converting(sound, tmp_path, capsys, monkeypatch):
    calls = []

    def interrupted_pack(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return pack_linear(*arguments)

    monkeypatch.setattr("tinychat.conversion.convert.pack_linear", interrupted_pack)
    command = ["convert", str(sound), str(tmp_path / "model"), "--method", "plain", "--no-check"]
    assert main(command) == 130
    said = "converting\nstopped: the same command continues from what is finished\n"
    assert capsys.readouterr() == ("", said)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".model.converting-")
    assert main(command) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_conversion_that_is_ended_leaves_what_is_finished(name, sound, tmp_path, capfd, monkeypatch):
    if not hasattr(signal, name):
        pytest.skip(f"there is no {name} here")
    number, calls = getattr(signal, name), []

    def ended_pack(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            signal.raise_signal(number)
        return pack_linear(*arguments)

    monkeypatch.setattr("tinychat.conversion.convert.pack_linear", ended_pack)
    previous = signal.signal(number, signal.SIG_DFL)
    try:
        assert main(["convert", str(sound), str(tmp_path / "model")]) == 128 + number
    finally:
        signal.signal(number, previous)
    assert capfd.readouterr() == ("", "converting\n")
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == [".model.converting"]


def test_ctrl_c_before_the_command_line_is_there():
    program = """
import builtins, runpy, signal
real = builtins.__import__
def interrupted(name, *rest, **more):
    if name == "click":
        signal.raise_signal(signal.SIGINT)
    return real(name, *rest, **more)
builtins.__import__ = interrupted
runpy.run_module("tinychat", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
