"""Measurements in a separate process: time from its start to the first token, time to load, peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from tinychat import windows
from tinychat.errors import TinychatError

# The real command line; afterwards the process tells of its memory, on stderr since stdout is the model's.
_COMPLETE = """
import sys
from tinychat.cli import main
code = main(sys.argv[1:])
from tinychat.bench.fresh_process import peak_mib
print(peak_mib(), file=sys.stderr)
sys.exit(code)
"""
_LOAD = """
import json, sys, time
started = time.perf_counter()
from pathlib import Path
from tinychat.generate.loading import load_folder
load_folder(Path(sys.argv[1]), **json.loads(sys.argv[2]))
print(time.perf_counter() - started, file=sys.stderr)
"""
_PROMPT = ("--raw", "--prompt", "Once upon a time", "--temperature", "0", "--max-tokens", "8")


@dataclass(frozen=True)
class FirstToken:
    """A one-shot completion: seconds from the start of the process to its first byte of text; peak memory in MiB."""

    seconds: float
    peak_mib: float


def complete_once(folder: Path, flags: Sequence[str] = ()) -> FirstToken:
    """Run `tinychat complete` on a model folder; TinychatError with its own message if it fails."""
    started = perf_counter()
    with start(_COMPLETE, "complete", str(folder), *_PROMPT, *flags) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = perf_counter() - started
        return FirstToken(seconds, float(last_line(process)))


def load_once(folder: Path, **options: object) -> float:
    """Return the seconds of `load_folder`, imports included; TinychatError if it fails."""
    with start(_LOAD, str(folder), json.dumps(options)) as process:
        return float(last_line(process))


def peak_mib() -> float:
    """Return the peak memory of this process, mapped files included."""
    try:
        # Not getrusage: there the peak of a child begins with its parent's.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return windows.peak_bytes() / (1 << 20)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def start(program: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a process of Python with a program and its arguments."""
    command = [sys.executable, "-P", "-c", program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0)


def last_line(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of a process; return its last line on stderr, or raise TinychatError with it if it failed."""
    _, err = process.communicate()
    lines = err.decode(errors="replace").splitlines() or [""]
    if process.returncode != 0:
        said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])
        raise TinychatError(said or f"the process that was measured ended with code {process.returncode}")
    return lines[-1]
