import sys
import tempfile
from pathlib import Path

import pytest
from import_graph import REPO

sys.path.insert(0, str(REPO / "scripts"))

import emulate


def test_what_is_installed_is_what_the_package_needs_and_what_the_tests_import():
    found = emulate.requirements((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    names = {each.partition(">")[0].partition(";")[0] for each in found}
    assert {"numpy", "numba", "tokenizers", *emulate.TEST_PACKAGES} <= names
    assert not {"mypy", "anthropic", "torch"} & names


def test_a_processor_says_what_it_has_and_nothing_better():
    said = {isa: emulate.cpu_info(processor, 2) for isa, processor in emulate.PROCESSORS.items()}
    assert all(text.count("processor\t:") == 2 for text in said.values())
    assert [isa for isa, text in said.items() if "asimddp" in text] == ["neon-dotprod", "neon-i8mm"]
    assert [isa for isa, text in said.items() if "i8mm" in text] == ["neon-i8mm"]


def test_linux_is_told_of_the_programs_once(tmp_path):
    (tmp_path / "register").touch()
    emulate.register("/usr/bin/qemu", tmp_path)
    assert (tmp_path / "register").read_text().endswith(":/usr/bin/qemu:OPF")
    (tmp_path / "register").write_text("")
    (tmp_path / "qemu-aarch64").touch()
    emulate.register("/usr/bin/qemu", tmp_path)
    assert (tmp_path / "register").read_text() == ""


def test_the_tests_run_with_the_instruction_set_on_its_processor(tmp_path):
    *_, script = emulate.command(tmp_path, "neon-dotprod", ["python", "-c", "print('a b')"])
    assert "TINYCHAT_ISA=neon-dotprod QEMU_CPU=neoverse-n1 " in script
    assert f"mount -o remount,bind,ro {tmp_path}/checkout" in script
    assert f"TINYCHAT_TEST_JOURNAL=/var/lib/tinychat-tests/neon-dotprod-{emulate.sources_digest()}.jsonl " in script
    assert "asimddp" in (tmp_path / "cpuinfo-neon-dotprod").read_text()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit, match="other files"):
        emulate.install(tmp_path, "/usr/bin/qemu")
    assert (tmp_path / "mine").exists()


def test_results_are_those_of_the_code_and_its_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(emulate, "REPO", tmp_path)
    digests = set()
    for path in ("tinychat/kernels/dot.py", "tests/test_dot.py", "tests/goldens/digests.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
        digests.add(emulate.sources_digest())
    (tmp_path / "tests/test_dot.pyc").touch()
    (tmp_path / "README.md").touch()
    assert emulate.sources_digest() in digests and len(digests) == 3


def test_the_compiler_listens_where_the_emulated_system_looks_and_ends_with_the_tests():
    # The path of a socket has at most 107 bytes, which a folder of pytest's may take up.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, emulate.compiler(Path(folder), "generic"):
        assert (Path(folder) / "var/lib/tinychat-tests/compiler-generic").is_socket()
