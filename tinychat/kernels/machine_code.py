"""Machine code of entry points: kept on disk, and loaded by LLVM alone.

An entry point is a compiled function that Python calls by its address. Its object code needs nothing of Numba's, so a
process that finds it on disk starts without Numba. A file holds a digest of all that follows and of its own name, then
the function's symbol and the object code; the name is a digest of whatever the code depends on, in a folder that the
user has chosen, too. A file that is cut, altered or renamed counts as missing.
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
# Numba's calling convention: a status, of which kernels have one only, the result behind the first pointer and the
# description of an exception behind the second; then the arguments. The last stands for types.
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4, ctypes.c_void_p)

_loaded: dict[str, int] = {}
"""Addresses by the name of the file."""
# Each has the code of one entry point, and lives as long as the process: threads may be in it until the end.
_engines: list[Any] = []


class EntryPoint:
    """Machine code at an address, as a function: see `engine.compiled.worker_loop`; kernels raise no exceptions."""

    def __init__(self, address: int) -> None:
        self._function = _PROTOTYPE(address)
        self._exception = ctypes.byref(ctypes.c_void_p())
        # The last arrays and their addresses: to ask for these takes longer than the call. Replaced as a whole, since
        # threads that work on different arrays may call at once.
        self._last: tuple[Any, Any, int, int] = (None, None, 0, 0)

    def __call__(self, thread: int, threads: int, queue: np.ndarray, places: np.ndarray) -> bool:
        """Do a share of a job; other threads run meanwhile."""
        last = self._last
        if last[0] is not queue or last[1] is not places:
            last = self._last = (queue, places, queue.ctypes.data, places.ctypes.data)
        result = ctypes.c_bool()
        self._function(ctypes.byref(result), self._exception, thread, threads, last[2], last[3], None)
        return result.value


def code_name(function: str, types: str) -> str:
    """Return the name of the file for a function that is compiled for such types on this processor."""
    features = llvm.get_host_cpu_features().flatten()
    processor = [llvm.get_host_cpu_name(), features, llvm.get_default_triple()]
    what = "|".join([process_cache_key(), function, types, *processor])
    return f"{function}-{hashlib.sha256(what.encode()).hexdigest()[:32]}{SUFFIX}"


def code_path(name: str) -> Path | None:
    """Return the file of that name; None where nothing is kept."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return Path(folder) / name if folder else None


def find_entry_point(name: str) -> EntryPoint | None:
    """Return the entry point whose code is loaded already, or kept whole on disk; None if there is none."""
    path = code_path(name)
    if name not in _loaded and path is not None:
        kept = read_code(path)
        if kept is not None:
            load_entry_point(name, *kept)
    return EntryPoint(_loaded[name]) if name in _loaded else None


def load_entry_point(name: str, symbol: str, code: bytes) -> EntryPoint:
    """Load object code, and return its function `symbol`, which `find_entry_point` finds from then on."""
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
    """Return the symbol and the object code that a file holds, or None if it is not there, or not what was written."""
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
    """Write object code to a file, in one step; where that cannot be done, say so once, and do without."""
    content = symbol.encode() + b"\0" + code
    try:
        # What killed processes have left is removed.
        unfinished_bytes(path.parent, f"*{SUFFIX}")
        with replacing(path) as file:
            file.write(_digest(path, content) + content)
    except OSError as error:
        warn_once(path.parent, error)


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()
