"""The one way tinychat compiles.

No ``fastmath``: it would let LLVM assume that there is no NaN, reorder sums, and fuse a multiply
with an add here but not there, so that two routes to the same number would round differently.
Every fma and every order of summation is written out instead.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.extending import overload

from tinychat.kernels.setup import say

FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}


class _PlaceOfKernels(CompileResultCacheImpl):  # type: ignore[misc]
    """Where Numba keeps a function: in the folder that `setup.prepare` chose, and nowhere else."""

    _locator_classes = (UserProvidedCacheLocator,)


class ForgivingCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, which never keeps the program from running.

    A damaged entry counts as missing, it is compiled once more; one that cannot be written is done without.
    """

    _impl_class = _PlaceOfKernels
    _has_complained = False

    def _load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(signature, target_context)
        except Exception:  # whatever unpickling or linking it raised
            with suppress(OSError):
                self.flush()
            return None

    def _save_overload(self, signature: Any, data: Any) -> None:
        try:
            super()._save_overload(signature, data)
        except Exception as error:  # a full disk; or an index that is damaged and cannot be replaced
            reason = getattr(error, "strerror", None) or error
            if not ForgivingCache._has_complained:
                say(f"compiled kernels are not kept in {self.cache_path} ({reason}): they are compiled at every start")
            ForgivingCache._has_complained = True


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that compiles a function with `FLAGS` and these options."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**FLAGS, **options)(function)
        # RuntimeError: there is no folder, or nothing can be written there, of which `setup` has told.
        with suppress(RuntimeError):
            dispatcher._cache = ForgivingCache(function)
        return dispatcher

    return decorate


# A function of its own; one that LLVM merges into its callers; one written into its only caller before compilation,
# where a function of its own would be compiled and optimized a second time.
kernel = compiled()
inlined = compiled(forceinline=True)
written_in = compiled(inline="always")


def chosen(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that makes `by_type` of a function, to be compiled with these options."""

    def decorate(choose: Callable[..., Any]) -> Any:
        @wraps(choose)
        def function(*arguments: Any, **named: Any) -> Any:
            raise TypeError(f"{choose.__name__} depends on Numba's types of its arguments: only compiled code calls it")

        overload(function, jit_options=FLAGS | options)(choose)
        return function

    return decorate


# A function that takes the Numba types of its arguments and returns what is compiled for them, of the same parameters.
# Compiled code calls it like any other.
by_type = chosen()
inlined_by_type = chosen(forceinline=True)
