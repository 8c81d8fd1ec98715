import os
import pickle
import socket
import subprocess
import sys
from contextlib import contextmanager

import numba
import numpy as np
import pytest
from import_graph import REPO
from kernels.kernel_inputs import team_of
from llvmlite import binding as llvm

from tinychat.kernels.variants import Unchanged

sys.path.insert(0, str(REPO / "scripts"))

import native_compiler
from foreign_kernels import TARGETS

AARCH64 = 0xB7  # a machine by its number in ELF
NAME = "tinychat.engine.forward.cap_logits"


@contextmanager
def started(folder, name):
    """Start the compiler; return where it listens."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "scripts")])}
    command = [sys.executable, "-P", REPO / "scripts/native_compiler.py", folder / name, folder / "cache"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield str(folder / name)
        process.terminate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compiler")


@pytest.fixture(scope="module")
def compiler(folder):
    with started(folder, "socket") as path:
        yield path


def test_code_is_that_of_the_processor_which_asks(compiler, monkeypatch):
    monkeypatch.setattr(native_compiler, "own_target", lambda: tuple(TARGETS["cortex-a72"]))
    team, rows, none = map(numba.typeof, (team_of(1)[0], np.zeros((1, 1), np.float32), Unchanged()))
    library, *_ = native_compiler.ask(compiler, NAME, (team, numba.int64, rows, none))
    name, kind, code = library
    assert "cap_logits" in name and kind == "bitcode"
    assert llvm.parse_bitcode(code).triple == TARGETS["cortex-a72"].triple


def test_a_kernel_of_a_module_comes_as_machine_code_also_from_disk(compiler, folder, monkeypatch):
    monkeypatch.setattr(native_compiler, "own_target", lambda: tuple(TARGETS["cortex-a72"]))
    types = numba.float32[:, ::1], numba.float32[:, :, ::1]
    (_, kind, (code, _)), *_ = native_compiler.ask(compiler, "tinychat.kernels.quantize:arrange_rows", types)
    assert kind == "object"
    with started(folder, "another") as another:
        found, *_ = native_compiler.ask(another, "tinychat.kernels.quantize:arrange_rows", types)
    assert found[2][0] == code
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == AARCH64


def test_what_fails_is_told_and_the_compiler_goes_on(compiler):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"KeyError: 'tinychat\.missing'"):
            native_compiler.ask(compiler, "tinychat.missing", ())


def test_a_message_that_is_cut_is_none():
    one, other = socket.socketpair()
    with other:
        with one:
            one.sendall(native_compiler._LENGTH.pack(9) + b"cut")
        with pytest.raises(EOFError):
            native_compiler.receive(other)


def test_the_target_of_this_process_is_as_llvm_names_it():
    target = native_compiler.own_target()
    assert pickle.loads(pickle.dumps(target)) == target
    assert target[1] == llvm.get_process_triple()
