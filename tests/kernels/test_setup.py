"""The instruction set of kernels, and the folder of their cache."""

import os
import re
import sys
from pathlib import Path

import pytest
from llvmlite.binding.targets import FeatureMap

from tinychat import processor
from tinychat.engine import compiled as wiring
from tinychat.kernels import amx_grant, setup

NAMES = "kernel|allocating_kernel|entry_point|noinline|deferred|always_inline|inline|stage|njit|intrinsic|operation"
COMPILES = rf"^@(({NAMES})(_by_type)?|by_type)\b"
X86_FEATURES = frozenset().union(*setup.ISA_FEATURES["x86_64"].values())
PACKAGE = Path(setup.__file__).parents[1]


def test_every_file_with_compiled_code_names_the_cache():
    compiled = {path for path in PACKAGE.rglob("*.py") if re.search(COMPILES, path.read_text(), re.MULTILINE)}
    assert {path.parent.name for path in compiled} == {"kernels", "engine"}
    wired = {Path(module.__file__) for module in (wiring.block_layers, wiring.mixers, wiring.mlps, wiring.wiring)}
    assert compiled | wired <= set(setup.source_files())


def test_the_best_instruction_set_is_taken():
    available = setup.host_instruction_sets()
    assert available[-1] == "generic"
    assert setup.choose_isa(None) == setup.choose_isa("") == available[0]


@pytest.mark.parametrize(
    ("architecture", "features", "sets"),
    [
        ("arm64", {"neon", "dotprod", "i8mm", "avx2", "f16c", "fma"}, ["neon-i8mm", "neon-dotprod", "generic"]),
        ("arm64", {"neon", "dotprod"}, ["neon-dotprod", "generic"]),
        ("arm64", {"neon"}, ["generic"]),
        ("x86_64", {"avx2", "f16c", "fma", "dotprod", "i8mm"}, ["avx2", "generic"]),
        ("x86_64", {"avxvnni", "avx2", "f16c", "fma"}, ["avxvnni", "avx2", "generic"]),
        ("riscv64", {"avx2", "f16c", "fma", "dotprod"}, ["generic"]),
    ],
)
def test_each_architecture_has_its_own_sets(architecture, features, sets, monkeypatch):
    monkeypatch.setattr(processor, "architecture", lambda: architecture)
    monkeypatch.setattr(processor, "features", lambda: frozenset(features))
    assert setup.host_instruction_sets() == sets


def test_what_can_be_forced_has_a_target():
    for architecture, sets in setup.ISA_FEATURES.items():
        assert {*sets, "generic"} - {next(iter(sets))} == setup.FORCED_TARGET[architecture].keys()


def test_avx512_stands_in_for_avxvnni(monkeypatch):
    monkeypatch.setattr(processor, "architecture", lambda: "x86_64")
    monkeypatch.setattr(processor, "features", lambda: X86_FEATURES - {"avxvnni"})
    assert setup.host_instruction_sets() == ["avx512vnni", "avxvnni", "avx2", "generic"]


@pytest.mark.parametrize(("machine", "architecture"), [("aarch64", "arm64"), ("AMD64", "x86_64"), ("sparc", "sparc")])
def test_the_system_names_the_architecture(machine, architecture, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert processor.architecture() == architecture


def test_features_of_arm_are_asked_of_the_system(monkeypatch):
    monkeypatch.setattr(processor, "architecture", lambda: "arm64")
    monkeypatch.setattr(processor.llvm, "get_host_cpu_features", lambda: FeatureMap(neon=True, sve=False))
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("tinychat.macos.system_number", {"hw.optional.arm.FEAT_DotProd": 1}.get)
    processor.features.cache_clear()
    try:
        assert processor.features() == {"neon", "dotprod"}
    finally:
        processor.features.cache_clear()
    assert processor.flags() == "+dotprod,+neon,-sve"


@pytest.mark.parametrize("isa", setup.host_instruction_sets())
def test_a_lower_instruction_set_can_be_asked_for(isa, capsys):
    assert setup.choose_isa(isa) == isa
    assert capsys.readouterr() == ("", "")


def test_a_missing_instruction_set_warns(capsys, monkeypatch):
    monkeypatch.setattr(setup, "host_instruction_sets", lambda: ["avx2", "generic"])
    assert setup.choose_isa("avx512vnni") == "avx2"
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "tinychat: TINYCHAT_ISA=avx512vnni is not available here (have: avx2, generic): using avx2\n"


def test_amx_is_refused_in_words(capsys, monkeypatch):
    monkeypatch.setattr(setup, "host_vectors", lambda: ["avx2", "generic"])
    monkeypatch.setattr(processor, "architecture", lambda: "x86_64")
    monkeypatch.setattr(processor, "features", lambda: X86_FEATURES)
    assert setup.choose_isa("amx") == "avx2"
    why = "the processor has no amx-bf16, amx-int8, amx-tile"
    assert capsys.readouterr().err == (
        f"tinychat: TINYCHAT_ISA=amx is not available here ({why}; have: avx2, generic): using avx2\n"
    )
    assert setup.choose_isa(None) == "avx2"
    assert capsys.readouterr().err == ""


def test_amx_is_taken_where_linux_grants_it(capsys, monkeypatch):
    monkeypatch.setattr(processor, "architecture", lambda: "x86_64")
    monkeypatch.setattr(processor, "features", lambda: X86_FEATURES | setup.AMX_FEATURES)
    monkeypatch.setattr(setup, "refusal", lambda: None)
    assert setup.host_instruction_sets()[:2] == ["amx", "avx512vnni"]
    assert setup.choose_isa(None) == "amx"
    monkeypatch.setattr(setup, "refusal", lambda: "Linux refuses the tile registers: No space left on device")
    assert setup.choose_isa(None) == "avx512vnni"
    assert capsys.readouterr().err == ""
    assert setup.choose_isa("amx") == "avx512vnni"
    assert "(Linux refuses the tile registers: No space left on device; have: avx512vnni, " in capsys.readouterr().err


@pytest.mark.skipif(
    sys.platform != "linux" or processor.architecture() != processor.X86, reason="the question is that of Linux on x86"
)
def test_linux_answers():
    """Without a processor that has tile registers it refuses, with its reason."""
    has_tiles = processor.features() >= setup.AMX_FEATURES
    answer = amx_grant.refusal()
    assert answer is None if has_tiles else answer.startswith("Linux refuses the tile registers: ")


def test_the_cache_key_covers_sources_and_settings(monkeypatch, tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(setup, "source_files", lambda: [source])
    before = setup.cache_key()
    assert setup.cache_key() == before
    keys = {before}
    for change in (
        lambda: source.write_text("x = 2\n"),
        lambda: monkeypatch.setattr(setup, "INSTRUCTION_SET", "another"),
        lambda: monkeypatch.setenv("NUMBA_OPT", "1"),
    ):
        change()
        keys.add(setup.cache_key())
    assert len(keys) == 4
    monkeypatch.setenv("NUMBA_NUM_THREADS", "7")
    assert setup.cache_key() in keys, "the number of threads makes no other code"


def test_the_cache_folder_is_configurable(monkeypatch, tmp_path):
    monkeypatch.setenv("TINYCHAT_CACHE", str(tmp_path / "here"))
    folder = setup.writable_cache_folder()
    assert folder.parent == tmp_path / "here"
    assert folder.is_dir()
    monkeypatch.delenv("TINYCHAT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert setup.writable_cache_folder().parent == tmp_path / "there" / "tinychat"


def test_a_read_only_cache_is_replaced_with_a_warning(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYCHAT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = setup.writable_cache_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err.startswith(f"tinychat: cannot cache compiled kernels in {tmp_path / 'file'}")


def test_old_kernels_are_evicted(tmp_path):
    for age in range(setup.CACHED_VERSIONS + 3):
        folder = tmp_path / f"{setup.CACHE_PREFIX}{age}"
        folder.mkdir()
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "something-else").mkdir()
    setup.evict_old_kernels(tmp_path)
    left = {folder.name for folder in tmp_path.iterdir()}
    newest = {f"{setup.CACHE_PREFIX}{age}" for age in range(setup.CACHED_VERSIONS)}
    assert left == newest | {"something-else"}
