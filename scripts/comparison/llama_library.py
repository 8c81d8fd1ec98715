"""llama.cpp's C functions, through llama-cpp-python."""

import importlib.util
import sys
import types
from typing import Any


def load() -> Any:
    """Import llama-cpp-python's C interface alone, and keep the library quiet.

    The package's own start imports NumPy, Jinja and more: 0.1 s that a program in C would not spend.

    Raises
    ------
    SystemExit
        If the package is not installed.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        sys.exit("error: llama_cpp is not installed in this interpreter: name another with --llama-python")
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["llama_cpp"] = package
    library: Any = importlib.import_module("llama_cpp.llama_cpp")
    # Kept as an attribute: the C side holds a bare pointer to it.
    library.silence = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(library.silence, None)
    return library
