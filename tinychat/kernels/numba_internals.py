"""What LLVM does to compiled functions that are linked into others, and to the one that they are linked into.

Numba lets LLVM optimize each function by itself, then once more with all that is linked into it, and make machine code
of that. Here, what only compiled code calls gets the second of these passes alone, and no machine code, which nobody
would run; what puts such functions together is not optimized with them again. That takes more than a third off a
first start, and neither a bit nor a measurable part of the kernels' speed.
"""

import copy
from typing import Any

from llvmlite import binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult

BITCODE = "bitcode"


class LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """What LLVM makes of a function, for other libraries to link."""

    @property
    def codegen(self) -> Any:
        """What is told of environments (`set_env`): this library has no memory to note them in."""
        return self

    def set_env(self, env_name: str, env: Any) -> None:
        """Do without the environment: it serves exceptions, which kernels never raise."""

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of machine code: there is none."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return what the kernel cache keeps."""
        return self.serialize_using_bitcode()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class AssemblyLibrary(JITCodeLibrary):  # type: ignore[misc]
    """What LLVM makes of a function that calls optimized ones and computes nothing itself."""

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
        # What must be always_inline is; all else is optimized already.
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.run(self._final_module, self._codegen._pass_builder(opt=0))


class LinkedAssemblyLibrary(AssemblyLibrary, LinkedLibrary):
    """The same, for other libraries to link, or to be loaded without Numba."""

    def object_code(self) -> bytes:
        """Return machine code for this processor.

        Raises
        ------
        RuntimeError
            It would call what only Numba's runtime has.
        """
        foreign = [function.name for function in self._final_module.functions if is_of_numba(function)]
        if foreign:
            raise RuntimeError(f"compiled code calls {', '.join(foreign)}, of Numba's runtime")
        code: bytes = self._codegen._tm.emit_object(self._final_module)
        return code


class _LibraryCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, with a library of ours for what it makes."""

    library_class: type[JITCodeLibrary]

    def define_pipelines(self) -> Any:
        """Put the library in place before the passes begin: none of them makes another then."""
        codegen, name = self.state.targetctx.codegen(), self.state.func_id.func_qualname
        self.state.library = _new_library(self.library_class, codegen, name)
        return super().define_pipelines()


class LinkedCompiler(_LibraryCompiler):
    """Compiles what only compiled code calls."""

    library_class = LinkedLibrary


class AssemblyCompiler(_LibraryCompiler):
    """Compiles what only puts others together."""

    library_class = AssemblyLibrary


class LinkedAssemblyCompiler(_LibraryCompiler):
    """Compiles what only puts others together, and what only compiled code calls."""

    library_class = LinkedAssemblyLibrary


class _Linker:
    """Stands for Numba's code generator where a kept library is read."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def unserialize_library(self, state: tuple[str, str, bytes]) -> Any:
        """Return the library that `serialize_using_object_code` has described."""
        name, _, bitcode = state
        library = _new_library(LinkedLibrary, self._codegen, name)
        library._final_module = llvm.parse_bitcode(bitcode)
        library._finalize_final_module()
        return library


def is_of_numba(function: Any) -> bool:
    """Return whether a function that a module calls is one of Numba's or of Python's, not of the C library's."""
    return function.is_declaration and function.name.startswith(("numba", "NRT_", "Py", "_Py"))


def _new_library(library_class: type[JITCodeLibrary], codegen: Any, name: str) -> Any:
    library = library_class(codegen, name)
    # It can be kept on disk later.
    library.enable_object_caching()
    return library


def rebuild(target_context: Any, payload: tuple[Any, ...]) -> Any:
    """Return a compiled function that the kernel cache has kept, be it with machine code or for linking only."""
    _, kind, _ = payload[0]
    if kind == BITCODE:
        codegen = target_context.codegen()
        target_context = copy.copy(target_context)
        target_context.codegen = lambda: _Linker(codegen)
    return CompileResult._rebuild(target_context, *payload)
