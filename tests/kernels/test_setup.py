"""The instruction set of kernels, and the folder of their cache."""

import os
import re
import sys
from pathlib import Path

import pytest

from tinychat.kernels import amx_grant, setup

NAMES = "kernel|allocating_kernel|entry_point|noinline|deferred|always_inline|inline|stage|njit|intrinsic|operation"
COMPILES = rf"^@(({NAMES})(_by_type)?|by_type)\b"
PACKAGE = Path(setup.__file__).parents[1]


def test_every_file_with_compiled_code_names_the_cache():
    compiled = {path for path in PACKAGE.rglob("*.py") if re.search(COMPILES, path.read_text(), re.MULTILINE)}
    assert {path.parent.name for path in compiled} == {"kernels", "engine"}
    assert compiled <= set(setup.source_files())


def test_the_best_instruction_set_is_taken():
    available = setup.host_instruction_sets()
    assert available[-1] == "generic"
    assert setup.choose_isa(None) == setup.choose_isa("") == available[0]


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
    monkeypatch.setattr(setup, "host_features", lambda: set().union(*setup.ISA_FEATURES.values()))
    assert setup.choose_isa("amx") == "avx2"
    why = "the processor has no amx-int8, amx-tile"
    assert capsys.readouterr().err == (
        f"tinychat: TINYCHAT_ISA=amx is not available here ({why}; have: avx2, generic): using avx2\n"
    )
    assert setup.choose_isa(None) == "avx2"
    assert capsys.readouterr().err == ""


def test_amx_is_taken_where_linux_grants_it(capsys, monkeypatch):
    features = set().union(*setup.ISA_FEATURES.values()) | setup.AMX_FEATURES
    monkeypatch.setattr(setup, "host_features", lambda: features)
    monkeypatch.setattr(setup, "refusal", lambda: None)
    assert setup.host_instruction_sets()[:2] == ["amx", "avx512vnni"]
    assert setup.choose_isa(None) == "amx"
    monkeypatch.setattr(setup, "refusal", lambda: "Linux refuses the tile registers: No space left on device")
    assert setup.choose_isa(None) == "avx512vnni"
    assert capsys.readouterr().err == ""
    assert setup.choose_isa("amx") == "avx512vnni"
    assert "(Linux refuses the tile registers: No space left on device; have: avx512vnni, " in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="the question is Linux's")
def test_linux_answers():
    """Without a processor that has tile registers it refuses, with its reason."""
    has_tiles = setup.host_features() >= setup.AMX_FEATURES
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
