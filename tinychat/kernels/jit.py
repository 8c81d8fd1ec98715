"""The one way tinychat compiles.

No ``fastmath``: it would let LLVM assume that there is no NaN, reorder sums, and fuse a multiply
with an add here but not there, so that two routes to the same number would round differently.
Every fma and every order of summation is written out instead.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature
from numba.extending import overload

from tinychat.file_lock import locked_within
from tinychat.kernels.numba_internals import AssemblyCompiler, LinkedAssemblyCompiler, LinkedCompiler, rebuild
from tinychat.kernels.setup import warn_once

# Reference counts are Numba's "NRT": kernels allocate nothing, and their arrays belong to whoever calls them. Without
# counts, and without wrappers that nobody calls, compilation takes 40 % less.
FLAGS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}

# Longer than any writes to the index of a function; who holds its lock longer has been stopped.
MOST_SECONDS = 2
_PAUSE = 0.005


class _PlaceOfKernels(CompileResultCacheImpl):  # type: ignore[misc]
    """Where Numba keeps a function: in the folder that `setup.prepare` chose, and nowhere else."""

    _locator_classes = (UserProvidedCacheLocator,)

    def rebuild(self, target_context: Any, payload: tuple[Any, ...]) -> Any:
        return rebuild(target_context, payload)


class ForgivingCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, which never keeps the program from running.

    A damaged entry counts as missing, it is compiled once more; one that cannot be written is done without.
    """

    _impl_class = _PlaceOfKernels

    def _load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            found = super()._load_overload(signature, target_context)
            wanted, _ = normalize_signature(signature)
            if found is not None and tuple(found.signature.args) != tuple(wanted):
                raise ValueError("the index names another function's file")
            return found
        except Exception:  # whatever unpickling or linking it raised
            with suppress(OSError):
                self.flush()
            return None

    def _save_overload(self, signature: Any, data: Any) -> None:
        index = Path(self._cache_file._index_path)
        try:
            self._impl.locator.ensure_cache_path()
            # One at a time: the index is read, and written with one entry more.
            with locked_within(index.with_suffix(".lock"), MOST_SECONDS, lambda: time.sleep(_PAUSE)):
                super()._save_overload(signature, data)
        except Exception as error:  # a full disk; or an index that is damaged and cannot be replaced
            warn_once(Path(self.cache_path), error)


class InnerDispatcher(CPUDispatcher):  # type: ignore[misc]
    """A compiled function that only compiled code can call: it is made without the wrapper that Python would call."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Refuse: where the wrapper should be is nothing."""
        raise TypeError(f"{self.__name__}: only compiled code calls it")


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that compiles a function with `FLAGS` and these options."""

    def decorate(function: Callable[..., Any]) -> Any:
        return keep(njit(**FLAGS | options)(function))

    return decorate


def inner(dispatcher: type[InnerDispatcher] = InnerDispatcher, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that compiles a function for compiled code, with `FLAGS` and these options."""
    options = FLAGS | {"nopython": True, "no_cpython_wrapper": True} | options

    def decorate(function: Callable[..., Any]) -> Any:
        return dispatcher(function, targetoptions=options, pipeline_class=LinkedCompiler)

    return decorate


def keep(dispatcher: Any) -> Any:
    """Keep what is compiled on disk; return the function."""
    # RuntimeError: there is no folder, or nothing can be written there, of which `setup` has told.
    with suppress(RuntimeError):
        dispatcher._cache = ForgivingCache(dispatcher.py_func)
    return dispatcher


def noinline(function: Callable[..., Any]) -> Any:
    """Compile a function of its own for compiled code, and keep it on disk, for it may serve several engines."""
    return keep(inner()(function))


def entry_point(function: Callable[..., Any]) -> Any:
    """Compile a function that only puts subroutines together, for Python to call by its address: see `machine_code`."""
    options = FLAGS | {"nopython": True, "no_cpython_wrapper": True}
    return InnerDispatcher(function, targetoptions=options, pipeline_class=LinkedAssemblyCompiler)


def object_code(function: Any, types: tuple[Any, ...]) -> tuple[str, bytes]:
    """Compile an entry point for arguments of these types; return its symbol, and object code that has it."""
    function.compile(types)
    compiled = function.overloads[types]
    return compiled.fndesc.llvm_func_name, compiled.library.object_code()


# What Python calls; the same, of what allocates arrays; what LLVM merges into its callers; what is written into them
# before compilation, which is best for a function with one caller: one of its own would be compiled and optimized, and
# then once more where it is called.
kernel = compiled()
allocating_kernel = compiled(_nrt=True)
always_inline = inner(forceinline=True)
inline = compiled(inline="always")
# The same, of what only puts subroutines together, for those who call it from Python.
inline_call_only = compiled(inline="always", pipeline_class=AssemblyCompiler)


def chosen(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that makes `by_type` of a function, to be compiled with these options."""

    def decorate(choose: Callable[..., Any]) -> Any:
        @wraps(choose)
        def function(*arguments: Any, **named: Any) -> Any:
            raise TypeError(f"{choose.__name__}: only compiled code calls it")

        overload(function, jit_options=FLAGS | {"pipeline_class": LinkedCompiler} | options)(choose)
        return function

    return decorate


# A function that takes the Numba types of its arguments and returns what is compiled for them, of the same parameters.
# Compiled code calls it like any other.
by_type = chosen()
always_inline_by_type = chosen(forceinline=True)


def is_kind(kind: Any, *classes: type) -> bool:
    """Say whether a Numba type is that of one of these named tuples."""
    return getattr(kind, "instance_class", None) in classes
