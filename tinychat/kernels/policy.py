"""The one way tinychat compiles.

No ``fastmath``: it would let LLVM assume that there is no NaN, reorder sums, and fuse a multiply
with an add here but not there, so that two routes to the same number would round differently.
Every fma and every order of summation is written out instead.
"""

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}


class ForgivingCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, in which a damaged entry counts as missing: it is compiled once more."""

    def _load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(signature, target_context)
        except Exception:  # whatever unpickling or linking it raised
            self.flush()
            return None


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that compiles a function with `FLAGS` and these options."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**FLAGS, **options)(function)
        dispatcher._cache = ForgivingCache(function)
        return dispatcher

    return decorate


# A function of its own; one that LLVM merges into its callers; one written into its only caller before compilation,
# where a function of its own would be compiled and optimized a second time.
kernel = compiled()
inlined = compiled(forceinline=True)
written_in = compiled(inline="always")
