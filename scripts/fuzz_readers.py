"""Mutate the files of every reader, and keep what fails.

    scripts/fuzz [SECONDS] [--seed N] [--reader NAME]

Each file is read in a process of its own, bounded in memory and time. Whatever is neither read nor refused in one
line (an internal error, a signal, more than 5 seconds or 1 GiB, a word on stderr) becomes a case in
``tests/fuzz_cases``, which ``tests/scripts/test_fuzz.py`` reads again in every run. Needs fork(): Linux or macOS.
"""

import argparse
import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from fuzzing.mutation import mutated
from fuzzing.readers import Reader, read, readers

CASES = Path(__file__).resolve().parents[1] / "tests" / "fuzz_cases"
MAX_SECONDS, MAX_BYTES = 5, 1 << 30


def main() -> int:
    """Fuzz for some seconds; return how many findings there were, 99 at most."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--reader", choices=[reader.name for reader in readers()], help="only this one")
    given = parser.parse_args()
    chosen = [reader for reader in readers() if given.reader in (None, reader.name)]
    print(f"seed {given.seed}, {', '.join(reader.name for reader in chosen)}", flush=True)
    found: dict[str, str] = {}
    outcomes = {reader.name: dict.fromkeys(("read", "refused", "failed"), 0) for reader in chosen}
    end, number = time.monotonic() + given.seconds, 0
    while time.monotonic() < end:
        for reader in chosen:
            data = mutated(reader.name, reader.seeds, Random(f"{given.seed} {reader.name} {number}"))
            outcome = run_case(reader, data)
            outcomes[reader.name][outcome if outcome in ("read", "refused") else "failed"] += 1
            if outcome not in ("read", "refused") and f"{reader.name}: {outcome}" not in found:
                found[f"{reader.name}: {outcome}"] = keep(reader, data)
                print(f"{reader.name} {number}: {outcome}; kept as {found[f'{reader.name}: {outcome}']}", flush=True)
        number += 1
    for name, counts in outcomes.items():
        print(f"{name:14} " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return min(len(found), 99)


def run_case(reader: Reader, data: bytes) -> str:
    """Let a process of its own read a file, and say how that ended."""
    with tempfile.TemporaryDirectory() as name:
        folder, report = Path(name) / "case", Path(name) / "report"
        folder.mkdir()
        for file, content in {**reader.beside, reader.file: data}.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        started, begun_with = time.monotonic(), Path(name) / "resident"
        child = os.fork()
        if child == 0:
            _read_and_exit(reader, folder, report, begun_with)
        _, status, usage = os.wait4(child, 0)
        seconds = time.monotonic() - started
        noise = (folder / "stderr").read_text(errors="replace").strip()
        outcome = report.read_text() if report.exists() else ""
        resident = int(begun_with.read_text())
    grown = (usage.ru_maxrss << (0 if sys.platform == "darwin" else 10)) - resident
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"longer than {MAX_SECONDS} s" if number == signal.SIGALRM else f"signal {number}: {noise[:200]}"
    if grown > MAX_BYTES:
        return f"more than {MAX_BYTES >> 20} MiB"
    if noise:
        return f"writes to stderr: {noise[:200]}"
    return outcome if seconds < MAX_SECONDS else f"longer than {MAX_SECONDS} s"


def _own_memory() -> tuple[int, int]:
    """Return the virtual and resident bytes of this process; a forked one begins with much of its parent's."""
    statm = Path("/proc/self/statm")
    pages = statm.read_text().split()[:2] if statm.exists() else ("0", "0")
    virtual, resident = (int(count) * resource.getpagesize() for count in pages)
    return virtual, resident


def _read_and_exit(reader: Reader, folder: Path, report: Path, begun_with: Path) -> None:
    try:
        virtual, resident = _own_memory()
        begun_with.write_text(str(resident))
        address_space = virtual + 4 * MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # The default action ends the process, wherever it is.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MAX_SECONDS)
        os.environ["TINYCHAT_HOME"] = str(folder)
        os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT), 2)
        report.write_text(read(reader, folder), errors="replace")
    finally:
        os._exit(0)


def keep(reader: Reader, data: bytes) -> Path:
    """Store a case for the tests."""
    path = CASES / reader.name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path.relative_to(CASES.parents[1])


if __name__ == "__main__":
    sys.exit(main())
