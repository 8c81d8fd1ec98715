"""Compile kernels for an emulated processor on this one, which is many times as fast; emulated_tests.py asks.

    python native_compiler.py SOCKET CACHE_FOLDER

LLVM writes the same code on any processor. A request has the target of the emulated process, a function and the types
of its arguments.
"""

from __future__ import annotations

import pickle
import socket
import struct
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

FORWARD = "forward pass"
_LENGTH = struct.Struct("<q")


def send(stream: socket.socket, message: bytes) -> None:
    stream.sendall(_LENGTH.pack(len(message)) + message)


def receive(stream: socket.socket) -> bytes:
    """Return the next message; EOFError if there is none, or not all of it."""
    with stream.makefile("rb") as file:
        head = file.read(_LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        message = file.read(length)
    if not length or len(message) < length:
        raise EOFError("the other end is closed")
    return message


def own_target() -> tuple[str, str, str, frozenset[str], str]:
    """Return the `foreign_kernels.Target` of this process."""
    import llvmlite.binding as llvm
    from numba.core import config

    from tinychat import processor
    from tinychat.kernels.setup import ISA

    cpu = config.CPU_NAME or llvm.get_host_cpu_name()
    return ISA, llvm.get_process_triple(), cpu, processor.features(), config.CPU_FEATURES or processor.flags()


def ask(path: str, function: str, types: tuple[Any, ...]) -> Any:
    """Return the result of `compiled` for a function and such types, in the emulated process."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        send(stream, pickle.dumps((own_target(), function, pickle.dumps(types))))
        failure, code = pickle.loads(receive(stream))
    if failure:
        raise RuntimeError(f"the compiler outside the emulator has failed:\n{failure}")
    return pickle.loads(code)


def answer(request: bytes, cache: Path) -> tuple[str, bytes]:
    """Return an error, or an empty text, and what is asked for."""
    try:
        target, function, types = pickle.loads(request)
        if "numba" not in sys.modules:
            from foreign_kernels import Target, compile_for

            compile_for(Target(*target), str(cache))
        return "", compiled(function, pickle.loads(types))
    except Exception:
        return traceback.format_exc(), b""


def dispatcher(function: str) -> Any:
    """Return a deferred function by its name in `DEFERRED`, or what stands in a module, behind a colon."""
    from tinychat.kernels.compile_queue import DEFERRED

    module, colon, name = function.partition(":")
    return getattr(import_module(module), name) if colon else DEFERRED[function]


def compiled(function: str, types: tuple[Any, ...]) -> bytes:
    """Compile a forward pass, or a `dispatcher`; return it serialized.

    Of a forward pass, symbol and object code; of others what Numba keeps on disk.
    """
    from numba.core import serialize

    from tinychat.engine.compiled import worker_loop
    from tinychat.kernels.jit import object_code

    if function == FORWARD:
        return pickle.dumps(object_code(worker_loop, types))
    found = dispatcher(function)
    found.compile(types)
    # From there: what this process has loaded itself has no object code to serialize.
    key = found._cache._index_key(types, found.targetctx.codegen())
    return serialize.dumps(found._cache._cache_file.load(key))


def main() -> None:
    """Report that requests are taken, and answer them until this process is ended."""
    path, cache = map(Path, sys.argv[1:])
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        print("ready", flush=True)
        while True:
            stream, _ = listener.accept()
            with stream:
                send(stream, pickle.dumps(answer(receive(stream), cache)))


if __name__ == "__main__":
    main()
