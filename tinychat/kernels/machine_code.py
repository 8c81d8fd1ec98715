"""The cache of entry points' machine code, which LLVM loads without Numba.

An entry point is a compiled function that Python calls by its address. Its object code needs nothing of Numba's, so a
process that finds it on disk starts without Numba. A file has a digest of its own name and of the rest, the function's
symbol, and the object code; the name is a digest of everything that the code depends on, since the user may have chosen
the folder. A file that is cut, altered or renamed counts as missing.
"""

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tinychat.files import open_regular, replacing, unfinished_bytes
from tinychat.kernels.setup import process_cache_key, warn_once

SUFFIX = ".code"
_DIGEST_BYTES = hashlib.sha256().digest_size
# Numba's calling convention: returns a status, always the same in kernels; pointers to the result and to an exception,
# then the arguments, of which the last has types only.
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4, ctypes.c_void_p)

_loaded: dict[str, int] = {}
"""Addresses by the name of the file."""
# Each has the code of one entry point, and lives as long as the process: threads may run in it until the end.
_engines: list[Any] = []


class EntryPoint:
    """Machine code at an address, as a function: see `engine.compiled.worker_loop`; kernels raise no exceptions."""

    def __init__(self, address: int) -> None:
        self._function = _PROTOTYPE(address)
        self._exception = ctypes.byref(ctypes.c_void_p())
        # The last arrays and their addresses, which take longer to get than the call. Replaced as a whole: threads with
        # different arrays may call at once.
        self._last: tuple[Any, Any, int, int] = (None, None, 0, 0)

    def __call__(self, thread: int, threads: int, queue: np.ndarray, pointers: np.ndarray) -> bool:
        """Do a share of a job, without the interpreter's lock."""
        last = self._last
        if last[0] is not queue or last[1] is not pointers:
            last = self._last = (queue, pointers, queue.ctypes.data, pointers.ctypes.data)
        result = ctypes.c_bool()
        self._function(ctypes.byref(result), self._exception, thread, threads, last[2], last[3], None)
        return result.value


def code_name(function: str, types: str) -> str:
    """Return the file name of a function's code for such types on this processor."""
    features = llvm.get_host_cpu_features().flatten()
    processor = [llvm.get_host_cpu_name(), features, llvm.get_default_triple()]
    what = "|".join([process_cache_key(), function, types, *processor])
    return f"{function}-{hashlib.sha256(what.encode()).hexdigest()[:32]}{SUFFIX}"


def code_path(name: str) -> Path | None:
    """Return the file of that name; None without a cache folder."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return Path(folder) / name if folder else None


def find_entry_point(name: str) -> EntryPoint | None:
    """Return an entry point that is loaded or cached on disk; None if there is none."""
    path = code_path(name)
    if name not in _loaded and path is not None:
        cached = read_code(path)
        if cached is not None:
            load_entry_point(name, *cached)
    return EntryPoint(_loaded[name]) if name in _loaded else None


def load_entry_point(name: str, symbol: str, code: bytes) -> EntryPoint:
    """Load object code; return its function `symbol`, which `find_entry_point` then finds."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise ValueError(f"the object code has no function {symbol}")
    _engines.append(engine)
    _loaded[name] = address
    return EntryPoint(address)


def read_code(path: Path) -> tuple[str, bytes] | None:
    """Return the symbol and the object code of a file; None if it is missing or damaged."""
    try:
        with open_regular(path) as file:
            digest, content = file.read(_DIGEST_BYTES), file.read()
    except OSError:
        return None
    if digest != _digest(path, content):
        return None
    symbol, _, code = content.partition(b"\0")
    return symbol.decode(), code


def write_code(path: Path, symbol: str, code: bytes) -> None:
    """Write object code to a file, atomically; where that fails, warn once."""
    content = symbol.encode() + b"\0" + code
    try:
        # Remove unfinished files of killed processes.
        unfinished_bytes(path.parent, f"*{SUFFIX}")
        with replacing(path) as file:
            file.write(_digest(path, content) + content)
    except OSError as error:
        warn_once(path.parent, error)


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()
