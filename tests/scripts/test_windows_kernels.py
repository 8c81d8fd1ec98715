"""The symbols that object code of Windows imports are found, and one that no library has is told."""

import subprocess
import sys

import llvmlite.binding as llvm
import pytest
import windows_kernels
from windows_kernels import TRIPLE, imported_symbols, look_up

MODULE = f"""
target triple = "{TRIPLE}"
@table = internal constant [4 x i32] [i32 3, i32 1, i32 4, i32 1]
declare i32 @SwitchToThread()
declare i32 @sched_yield()
declare i32 @a_name_that_is_longer_than_eight_letters(ptr)
declare i32 @never_called()
define internal i32 @own(i32 %n) noinline {{ ret i32 %n }}
define i32 @f(i64 %i) {{
    %large = alloca [9000 x i8]
    %element = getelementptr [4 x i32], ptr @table, i64 0, i64 %i
    %number = load i32, ptr %element
    %a = call i32 @SwitchToThread()
    %b = call i32 %CALLED%
    %c = call i32 @a_name_that_is_longer_than_eight_letters(ptr %large)
    %d = call i32 @own(i32 %number)
    ret i32 %d
}}
"""


def compiled(called, triple=TRIPLE):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(MODULE.replace("%CALLED%", called).replace(TRIPLE, triple))
    return llvm.Target.from_triple(triple).create_target_machine().emit_object(module)


def test_what_is_called_is_found_and_nothing_else():
    code = compiled("@sched_yield()")
    long = "a_name_that_is_longer_than_eight_letters"
    assert imported_symbols(code) == {"SwitchToThread", "__chkstk", "sched_yield", long}
    imports = look_up(imported_symbols(code))
    assert imports.found == {"SwitchToThread": "kernel32.dll", "__chkstk": "ntdll.dll"}
    assert imports.missing == [long, "sched_yield"]


@pytest.mark.parametrize("triple", ["aarch64-pc-windows-msvc", "x86_64-unknown-linux-gnu"])
def test_code_of_other_machines_is_refused(triple):
    with pytest.raises(ValueError, match="machine"):
        imported_symbols(compiled("@SwitchToThread()", triple))
    with pytest.raises(ValueError, match="too short"):
        imported_symbols(b"MZ")


def test_a_missing_symbol_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["windows_kernels.py"])
    monkeypatch.setattr(windows_kernels, "compile_all", lambda names, isa: {"one": compiled("@sched_yield()")})
    assert windows_kernels.main() == 1
    assert "MISSING sched_yield" in capsys.readouterr().out


@pytest.mark.slow
def test_kernels_import_only_what_windows_has():

    command = [sys.executable, windows_kernels.__file__, "tinyllama"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SwitchToThread (kernel32.dll)" in done.stdout
