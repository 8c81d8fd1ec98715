"""The decorators that compile every kernel.

A *device function* is one that only compiled code calls. Six decorators:

    kernel         Python calls it; an `allocating_kernel` may also make arrays
    always_inline  a small device function: LLVM inlines each call
    inline         a large device function with one caller: Numba copies its body there before compilation. A function
                   of its own would be optimized alone, and then once more where it is called
    noinline       a device function of its own, cached on disk, since several engines may call it
    deferred       `noinline` for a function that returns nothing: its caller is typed before it is compiled, and other
                   processes may compile it meanwhile (`compile_queue`)
    entry_point    the outermost function, which only calls noinline and deferred ones; Python calls its machine code
                   by address, without Numba (`machine_code`)

With `_by_type` (`by_type` alone leaves inlining to LLVM) the decorated function does not compute: it takes the Numba
types of the arguments and returns the implementation for them, a function with the same parameter names. So a model
compiles nothing for parts that it lacks:

    @always_inline_by_type
    def scale(norm, v):
        def rms(norm, v):
            return v * norm.gain

        return (lambda norm, v: v) if is_kind(norm, NoNorm) else rms

`team.stage` makes a stage of the forward pass: a deferred function and a barrier.

No ``fastmath``: it would let LLVM assume that there is no NaN, reorder sums, and fuse a multiply with an add here but
not there, so that two routes to the same number would round differently. Every fma and every order of summation is
written out instead.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from numba import njit
from numba.extending import overload

from tinychat.kernels.numba_internals import (
    CallOnlyCompiler,
    CallOnlyDeviceCompiler,
    DeviceCompiler,
    DeviceDispatcher,
    KernelCache,
)

# Reference counts are Numba's "NRT": kernels allocate nothing, and their arrays belong to the caller. Without counts,
# and without wrappers that nobody calls, compilation takes 40 % less.
FLAGS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}


def cached(dispatcher: Any) -> Any:
    """Cache a function's machine code or bitcode on disk; return the function."""
    # RuntimeError: there is no folder, or none that can be written, of which `setup` has warned.
    with suppress(RuntimeError):
        dispatcher._cache = KernelCache(dispatcher.py_func)
    return dispatcher


def _njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    return lambda function: cached(njit(**FLAGS | options)(function))


kernel = _njit()
allocating_kernel = _njit(_nrt=True)
inline = _njit(inline="always")
# Tests call stages from Python.
inline_call_only = _njit(inline="always", pipeline_class=CallOnlyCompiler)


def device_function(
    function: Callable[..., Any],
    dispatcher: type[DeviceDispatcher] = DeviceDispatcher,
    compiler: Any = DeviceCompiler,
    **options: Any,
) -> Any:
    """Return the dispatcher of a device function."""
    options = FLAGS | {"nopython": True, "no_cpython_wrapper": True} | options
    return dispatcher(function, targetoptions=options, pipeline_class=compiler)


def always_inline(function: Callable[..., Any]) -> Any:
    """Compile a device function that LLVM inlines."""
    return device_function(function, forceinline=True)


def noinline(function: Callable[..., Any]) -> Any:
    """Compile a device function of its own."""
    return cached(device_function(function))


def entry_point(function: Callable[..., Any]) -> Any:
    """Compile a call-only function to object code: see `object_code`."""
    return device_function(function, compiler=CallOnlyDeviceCompiler)


def object_code(function: Any, types: tuple[Any, ...]) -> tuple[str, bytes]:
    """Compile an entry point for arguments of these types; return its symbol and its object code."""
    function.compile(types)
    compiled = function.overloads[types]
    return compiled.fndesc.llvm_func_name, compiled.library.object_code()


def _by_type(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(choose: Callable[..., Any]) -> Any:
        @wraps(choose)
        def function(*arguments: Any, **named: Any) -> Any:
            raise TypeError(f"{choose.__name__}: only compiled code calls it")

        overload(function, jit_options=FLAGS | {"pipeline_class": DeviceCompiler} | options)(choose)
        return function

    return decorate


by_type = _by_type()
always_inline_by_type = _by_type(forceinline=True)


def is_kind(kind: Any, *classes: type) -> bool:
    """Return whether a Numba type is that of one of these named tuples."""
    return getattr(kind, "instance_class", None) in classes
