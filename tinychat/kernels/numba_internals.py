"""Subclasses of Numba's internals; `pyproject.toml` bounds the version that they are written for.

Numba lets LLVM optimize each function by itself, then once more with all functions that are linked into it, and emits
machine code. Here a device function, which only compiled code calls, gets the second pass alone and stays LLVM bitcode.
A call-only function, which calls optimized functions and computes nothing itself, is not optimized with them again.
Both together take more than a third off a first start, and cost neither a bit nor measurable speed.
"""

import copy
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult, Flags
from numba.core.inline_closurecall import InlineWorker
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import type_inference_stage

from tinychat.file_lock import locked_within
from tinychat.kernels.setup import warn_once

# Longer than any process writes to the index of a function: who holds its lock longer was stopped.
LOCK_TIMEOUT = 2
_PAUSE = 0.005
_BITCODE = "bitcode"
# Functions of Numba's runtime and of Python, which machine code cannot call where neither is loaded, and those that
# Numba never found.
_RUNTIME_PREFIXES = ("numba", ".numba", "NRT_", "Py", "_Py")


class DeviceLibrary(JITCodeLibrary):  # type: ignore[misc]
    """LLVM bitcode of a device function, for other libraries to link."""

    @property
    def codegen(self) -> Any:
        """The receiver of `set_env`: this library has no memory to store environments in."""
        return self

    def set_env(self, env_name: str, env: Any) -> None:
        """Drop the environment: it serves exceptions, which kernels never raise."""

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return the content of the cache file: bitcode."""
        return self.serialize_using_bitcode()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class CallOnlyLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Machine code of a call-only function."""

    def _optimize_functions(self, ll_module: Any) -> None:
        # Numba keeps each variable in memory; in registers they cost the code generator less.
        ll_module.data_layout = self._codegen._data_layout
        builder = self._codegen._pass_builder(opt=0)
        for function in ll_module.functions:
            if not function.is_declaration:
                passes = llvm.create_new_function_pass_manager()
                passes.add_sroa_pass()
                passes.add_instruction_combine_pass()
                passes.add_simplify_cfg_pass()
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.run(self._final_module, self._codegen._pass_builder(opt=0))


class CallOnlyDeviceLibrary(CallOnlyLibrary, DeviceLibrary):
    """LLVM bitcode of a call-only function, for other libraries to link, or for object code."""

    def object_code(self) -> bytes:
        """Return machine code for this processor; RuntimeError if it would call a function of Numba's runtime."""
        called = [function.name for function in self._final_module.functions if function.is_declaration]
        foreign = [name for name in called if name.startswith(_RUNTIME_PREFIXES)]
        if foreign:
            raise RuntimeError(f"compiled code calls {', '.join(foreign)}, of Numba's runtime")
        code: bytes = self._codegen._tm.emit_object(self._final_module)
        return code


def _new_library(library_class: type[JITCodeLibrary], codegen: Any, name: str) -> Any:
    library = library_class(codegen, name)
    library.enable_object_caching()
    return library


def _compiler_of(library_class: type[JITCodeLibrary]) -> type[Compiler]:
    """Return Numba's compiler with another class of library."""

    class LibraryCompiler(Compiler):  # type: ignore[misc]
        def define_pipelines(self) -> Any:
            # Passes make a library only where there is none yet.
            codegen, name = self.state.targetctx.codegen(), self.state.func_id.func_qualname
            self.state.library = _new_library(library_class, codegen, name)
            return super().define_pipelines()

    return LibraryCompiler


DeviceCompiler = _compiler_of(DeviceLibrary)
CallOnlyCompiler = _compiler_of(CallOnlyLibrary)
CallOnlyDeviceCompiler = _compiler_of(CallOnlyDeviceLibrary)


class DeviceDispatcher(CPUDispatcher):  # type: ignore[misc]
    """A device function, without the wrapper that Python would call."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Refuse a call from Python."""
        raise TypeError(f"{self.__name__}: only compiled code calls it")


class _BitcodeReader:
    """Replaces Numba's code generator while a cached `DeviceLibrary` is read."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def unserialize_library(self, state: tuple[str, str, bytes]) -> Any:
        name, _, bitcode = state
        library = _new_library(DeviceLibrary, self._codegen, name)
        library._final_module = llvm.parse_bitcode(bitcode)
        library._finalize_final_module()
        return library


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """The files of a function's cache, in the folder that `setup.prepare` chose, and nowhere else."""

    _locator_classes = (UserProvidedCacheLocator,)

    def rebuild(self, target_context: Any, payload: tuple[Any, ...]) -> Any:
        _, kind, _ = payload[0]
        if kind == _BITCODE:
            reader = _BitcodeReader(target_context.codegen())
            target_context = copy.copy(target_context)
            target_context.codegen = lambda: reader
        return CompileResult._rebuild(target_context, *payload)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, whose errors never keep the program from running.

    A damaged entry counts as missing; an entry that cannot be written is left out.
    """

    _impl_class = _KernelCacheImpl

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
            # One process at a time: each reads the index, and writes it with one entry more.
            with locked_within(index.with_suffix(".lock"), LOCK_TIMEOUT, lambda: time.sleep(_PAUSE)):
                super()._save_overload(signature, data)
        except Exception as error:  # a full disk; or an index that is damaged and cannot be replaced
            warn_once(Path(self.cache_path), error)


def infer_types(compiler: Any, function: Any, argument_types: tuple[Any, ...]) -> None:
    """Infer the types in a function, as its compilation by a dispatcher's compiler will, and compile nothing."""
    contexts = compiler.targetdescr.typing_context, compiler.targetdescr.target_context
    pipeline = Compiler(*contexts, None, None, None, Flags(), None)
    worker = InlineWorker(*contexts, {}, pipeline, Flags(), None)
    type_inference_stage(*contexts, worker.run_untyped_passes(function, enable_ssa=True), argument_types, None)
