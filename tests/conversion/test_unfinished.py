"""A conversion that was killed goes on from what it had finished, and ends with the bytes of an unbroken one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import engines
import families
import numpy as np
import pytest
from processes import KILLED_CONVERSION

import tinychat
from tinychat.checkpoint.folder import folder_of
from tinychat.conversion import convert
from tinychat.conversion.convert import write_model_folder
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.pipeline import Recipe, quantization_of
from tinychat.conversion.unfinished import JournaledWriter, key_of, work_for
from tinychat.errors import ConversionError
from tinychat.models.layout import Quantization

TEXTS = [[1, 5, 9, 13, 20, 7, 3, 8], [2, 4, 6, 11, 30, 12]]
KILLED = (
    KILLED_CONVERSION
    + """
from pathlib import Path
from tinychat.checkpoint.folder import folder_of
from tinychat.conversion.pipeline import Recipe, quantization_of

texts = eval(sys.argv[5])
method = "gptq" if texts else "plain"
with folder_of(Path(sys.argv[1])) as folder:
    quantization = quantization_of(folder, Recipe(sys.argv[4], algorithm="plain"))
    convert.write_model_folder(folder, sys.argv[2], quantization, algorithm=method, texts=texts)
"""
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path_factory.mktemp("checkpoint"))


def kill_after(steps, checkpoint, target, quant, texts):
    command = [sys.executable, "-c", KILLED, checkpoint, target, str(steps), quant, repr(texts)]
    assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL
    (left,) = target.parent.glob(f".{target.name}.converting-*")
    return left


def make_int8(checkpoint, target):
    """Convert in the way that `kill_after` does without texts."""
    return write_model_folder(checkpoint, target, Quantization("int8", 32), algorithm="plain", texts=[])


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# What is packed by itself, layer by layer with texts, and codes that pass through: each killed in another place.
@pytest.mark.parametrize(
    ("quant", "texts", "steps", "left_to_do"), [("int8", [], 7, 5), ("int4", TEXTS, 6, 10), ("native", [], 5, 7)]
)
def test_a_killed_conversion_goes_on(quant, texts, steps, left_to_do, checkpoint, tmp_path, monkeypatch):
    method = "gptq" if texts else "plain"
    if quant == "native":
        checkpoint = engines.native_file("qwen3", tmp_path / "qwen3.gguf")

    def make(target, progress=None):
        with folder_of(checkpoint) as folder:
            quantization = quantization_of(folder, Recipe(quant, algorithm="plain"))
            return write_model_folder(folder, target, quantization, progress, algorithm=method, texts=texts)

    expected = make(tmp_path / "whole")
    target = tmp_path / "model"
    left = kill_after(steps, checkpoint, target, quant, texts)
    # Somebody kills it again, and the last line of the journal is not whole.
    kill_after(2, checkpoint, target, quant, texts)
    with (left / "journal").open("a") as journal:
        journal.write('{"linear": "qkv')
    written = []
    write = JournaledWriter.write_parts
    monkeypatch.setattr(
        JournaledWriter, "write_parts", lambda self, *piece: (written.append(piece[:2]), write(self, *piece))
    )
    seen = []
    make(target, lambda *done: seen.append(done))
    assert len(written) == left_to_do, "of 14: three layers of four linears, embedding and output matrix"
    assert seen[-1][0] == seen[-1][1]
    found, wanted = files_of(target), files_of(expected)
    assert found.keys() == wanted.keys()
    assert all(found[name] == wanted[name] for name in wanted)
    assert not left.exists()


def test_what_did_not_reach_the_disk_is_made_again(checkpoint, tmp_path):
    expected = convert.convert(checkpoint, tmp_path / "whole", "int8")
    left = kill_after(7, checkpoint, tmp_path / "model", "int8", [])
    weights = left / "model" / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(-weights.stat().st_size // 2, os.SEEK_END)
        file.write(bytes(4096))
    assert files_of(make_int8(checkpoint, tmp_path / "model")) == files_of(expected)
    assert not left.exists(), "it was gone on from"


@pytest.mark.parametrize("name", ["journal", "hidden_states.npz", "model/model.safetensors"])
def test_a_damaged_byte_anywhere_is_found_and_costs_time_only(name, checkpoint, tmp_path):
    def make(target):
        quantization = quantization_of(checkpoint, Recipe("int4", algorithm="plain"))
        return write_model_folder(checkpoint, target, quantization, algorithm="gptq", texts=TEXTS)

    expected = files_of(make(tmp_path / "whole"))
    left = kill_after(6, checkpoint, tmp_path / "killed", "int4", TEXTS)
    size = (left / name).stat().st_size
    for number, place in enumerate([0, 3, 40, size // 3, size // 2, size - 30, size - 1]):
        target = tmp_path / f"model{number}"
        damaged = shutil.copytree(left, tmp_path / left.name.replace("killed", target.name))
        data = bytearray((damaged / name).read_bytes())
        data[place] ^= 3
        (damaged / name).write_bytes(data)
        assert files_of(make(target)) == expected
        assert not damaged.exists(), "it was gone on from"


def test_a_damaged_line_of_the_journal_costs_its_own_part_only(checkpoint, tmp_path, monkeypatch):
    left = kill_after(7, checkpoint, tmp_path / "model", "int8", [])
    lines = (left / "journal").read_bytes().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if line.strip())
    lines[number] = lines[number].replace(b"{", b"(", 1)
    (left / "journal").write_bytes(b"".join(lines))
    written = []
    write = JournaledWriter.write_parts
    monkeypatch.setattr(
        JournaledWriter, "write_parts", lambda self, *piece: (written.append(piece[:2]), write(self, *piece))
    )
    make_int8(checkpoint, tmp_path / "model")
    assert len(written) == 14 - 7 + 1


def test_another_checkpoint_or_way_begins_anew(checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    key = key_of(copy, "int8")
    assert key == key_of(copy, "int8") != key_of(copy, "int4")
    assert key != key_of(checkpoint, "int8"), "it lies elsewhere"
    os.utime(next(copy.glob("*.safetensors")), (1, 1))
    assert key_of(copy, "int8") != key
    key = key_of(copy, "int8")
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert key_of(copy, "int8") != key
    # The hub's cache: the place says which files these are, and not all may be there yet.
    snapshot = shutil.copytree(checkpoint, tmp_path / "models--a--b" / "snapshots" / "0123")
    key = key_of(snapshot)
    next(snapshot.glob("*.safetensors")).unlink()
    assert key_of(snapshot) == key


@pytest.mark.parametrize(("error", "stays"), [(KeyboardInterrupt, True), (SystemExit, True), (ValueError, False)])
def test_a_folder_stays_where_the_program_was_stopped(error, stays, tmp_path):
    with pytest.raises(error), work_for(tmp_path / "model", "key") as work:
        work.write("texts.json", {"a": [1, 2]})
        work.write_arrays("states", {"x": np.arange(3)})
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ([".model.converting-key"] if stays else [])
    with work_for(tmp_path / "model", "key") as work:
        assert work.read("texts.json") == ({"a": [1, 2]} if stays else {})
        assert [*work.read_arrays("states")] == (["x"] if stays else [])
        (work.folder / "texts.json").write_text("{")
        assert work.read("texts.json") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_two_at_once_do_not_meet(tmp_path):
    with work_for(tmp_path / "model", "key") as one:
        with pytest.raises(ConversionError, match="another program has made it"):
            with work_for(tmp_path / "model", "key") as two:
                assert one.folder != two.folder
                (tmp_path / "model").mkdir()
                (tmp_path / "model" / "file").touch()
        shutil.rmtree(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_what_another_user_has_put_there_is_not_gone_on_from(tmp_path, monkeypatch):
    (tmp_path / ".model.converting-key").mkdir()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with work_for(tmp_path / "model", "key") as work:
        assert work.folder.name != ".model.converting-key"


def test_the_texts_that_a_model_wrote_are_not_written_again(checkpoint, tmp_path, monkeypatch):
    """The first use of a checkpoint, stopped by Ctrl-C between two layers."""
    calls = []
    run_layer = FloatPass.run_layer

    def interrupted(float_pass, layer, hidden, *linear):
        # Without linears of its own, the quality report calls it.
        calls.extend([layer] * len(linear))
        if calls == [0, 0, 1]:
            raise KeyboardInterrupt
        return run_layer(float_pass, layer, hidden, *linear)

    monkeypatch.setattr("tinychat.conversion.pipeline.TEXTS", 2)
    expected = tinychat.convert(checkpoint, tmp_path / "whole")
    monkeypatch.setattr(FloatPass, "run_layer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tinychat.api.locate(str(checkpoint))
    monkeypatch.setattr("tinychat.conversion.calibration.write_texts", None)
    folder = tinychat.api.locate(str(checkpoint))
    # The quality report runs all layers behind them.
    assert calls[3:7] == [1, 1, 2, 2]
    assert (folder / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    described = [json.loads((each / "tinychat.json").read_text()) for each in (folder, expected)]
    assert described[0]["certificate"] == described[1]["certificate"]


def test_a_damaged_model_that_writes_the_texts_is_made_again(checkpoint, tmp_path, monkeypatch):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("tinychat.conversion.pipeline.TEXTS", 2)
    expected = tinychat.convert(checkpoint, tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("tinychat.conversion.calibration.write_texts", interrupted)
        tinychat.api.locate(str(checkpoint))
    (weights,) = Path(os.environ["TINYCHAT_HOME"]).rglob("int8/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    weights.write_bytes(data)
    folder = tinychat.api.locate(str(checkpoint))
    assert (folder / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
