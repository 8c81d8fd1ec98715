"""What is compiled before a model is there is what it needs."""

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import engines
import pytest
from processes import is_running

from tinychat.engine import precompile
from tinychat.engine.engine import Engine
from tinychat.engine.forward_pass import ForwardPass
from tinychat.engine.loading import default_kv
from tinychat.engine.precompile import begin
from tinychat.models.folder import open_model_folder

REPO = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    """Keep what is noted of compilations, none of which happens here, out of the cache of kernels."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    return folder


@pytest.mark.parametrize(("variant", "method"), [("qwen3-tied", "int4"), ("gemma2", "int8"), ("gpt2", "f32")])
def test_the_types_are_those_of_the_model(variant, method, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(ForwardPass, "prepare", lambda forward_pass, threads, progress: seen.append(forward_pass))
    folder = open_model_folder(engines.convert_variant(variant, method, tmp_path / "model"))
    precompile.compile_for(folder.config, folder.quantization)
    engine = Engine(folder, 2, default_kv(folder.config, folder.quantization))
    assert [each.code_name for each in seen] == [engine.forward_pass.code_name]


SERVED = """
import sys, time
from tinychat.engine import precompile
precompile.compile_for = lambda config, quantization: print(config, quantization, flush=True) or time.sleep(60)
precompile.serve()
"""
STARTED = """
import subprocess, sys
served = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
with served.stdin as stream:
    stream.write(bytes.fromhex(sys.argv[2]))
print(served.pid, served.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process knows there that its parent has ended")
def test_it_ends_with_the_process_that_started_it():
    command = [sys.executable, "-c", STARTED, SERVED, pickle.dumps(("config", "quantization")).hex()]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    number, *told = parent.stdout.readline().split()
    assert told == ["config", "quantization"]
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    until = monotonic() + 30
    while is_running(int(number)):
        assert monotonic() < until
        sleep(0.05)


@pytest.fixture
def started(monkeypatch):
    """Return the commands that would have been started, on two cores."""
    commands = []

    def start(command, **options):
        commands.append(command)
        raise OSError("no more processes")

    monkeypatch.setattr("tinychat.machine.available_cores", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


@pytest.mark.parametrize(("cores", "count"), [(1, 0), (2, 1)])
def test_only_a_second_core_compiles_ahead_and_a_failed_start_does_no_harm(cores, count, started, monkeypatch):
    monkeypatch.setattr("tinychat.machine.available_cores", lambda: cores)
    begin("config", "quantization")
    assert len(started) == count


def test_nothing_compiles_what_another_process_compiles_or_has_compiled(started, notes, tmp_path, monkeypatch):
    def prepare(forward_pass, threads, progress):
        begin(*model)
        counts.append(len(started))
        if len(counts) == 1:
            raise RuntimeError("killed")

    folder = open_model_folder(engines.convert_variant("qwen3-tied", "int4", tmp_path / "model"))
    model, counts = (folder.config, folder.quantization), []
    monkeypatch.setattr(ForwardPass, "prepare", prepare)
    with pytest.raises(RuntimeError, match="killed"):
        precompile.compile_for(*model)
    begin(*model)
    assert (counts, len(started)) == ([0], 1), "what was begun and not finished is begun again"
    precompile.compile_for(*model)
    begin(*model)
    assert (counts, len(started)) == ([0, 1], 1)
    begin(replace(folder.config, rms_norm_eps=0.5), folder.quantization)
    assert len(started) == 2, "this is another model"
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    begin(*model)
    assert len(started) == 3, "nothing is kept"
