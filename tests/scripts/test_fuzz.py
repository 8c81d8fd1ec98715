"""What `scripts/fuzz` found once is read or refused today, and the fuzzer finds what is bad."""

import sys
from random import Random

import pytest

if sys.platform == "win32":
    pytest.skip("the fuzzer forks", allow_module_level=True)

from fuzz_readers import CASES, run_case
from fuzzing.mutation import mutated
from fuzzing.readers import Reader, readers

pytestmark = pytest.mark.slow

BY_NAME = {reader.name: reader for reader in readers()}
KEPT = sorted(path for path in CASES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", BY_NAME)
def test_sound_files_are_read(name):
    assert [run_case(BY_NAME[name], seed) for seed in BY_NAME[name].seeds] == ["read"] * len(BY_NAME[name].seeds)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_findings_stay_mended(path):
    assert run_case(BY_NAME[path.parent.name], path.read_bytes()) in ("read", "refused")


@pytest.mark.parametrize("name", BY_NAME)
def test_mutations_follow_from_the_seed(name):
    seeds = BY_NAME[name].seeds
    cases = [mutated(name, seeds, Random(f"1 {name} {number}")) for number in range(20)]
    assert cases == [mutated(name, seeds, Random(f"1 {name} {number}")) for number in range(20)]
    assert len({*cases} - {*seeds}) > 10


def hang(folder):
    while True:
        pass


def fill_memory(folder):
    return len(b"x" * (1100 << 20))


def end_by_signal(folder):
    import os

    os.abort()


def write_to_stderr(folder):
    import os

    os.write(2, b"thread panicked")


BAD = {
    "longer than 5 s": hang,
    "more than 1024 MiB": fill_memory,
    "signal 6": end_by_signal,
    "writes to stderr: thread panicked": write_to_stderr,
    "internal error ZeroDivisionError": lambda folder: 1 / 0,
}


@pytest.mark.parametrize("outcome", BAD)
def test_what_is_bad_is_found(outcome):
    assert run_case(Reader("bad", "file", (b"",), BAD[outcome]), b"x").startswith(outcome)


def test_memory_of_this_process_is_not_the_readers():
    held = b"x" * (1100 << 20)
    assert run_case(Reader("good", "file", (b"",), lambda folder: None), held[:1]) == "read"
