"""Processes of engines: started in a clean environment, asked one at a time, measured from outside.

This module and whoever uses it stay small in memory: Linux counts the parent's memory at the moment of the fork
towards the child's peak.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1]
# Settings meant for one engine change another: OMP_WAIT_POLICY alone halves llama.cpp's speed.
SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_", "GGML_", "LLAMA_", "OV_", "PYTHON", "TINYCHAT_ISA")
SETTLE_SECONDS = 0.05


class EngineError(Exception):
    """A process ended that should not have; the message is one line."""


@dataclass(frozen=True)
class Finished:
    """What a process that has ended took."""

    first_line: str
    first_line_seconds: float
    seconds: float
    peak_mib: float


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of thread pools, compilers and engines.

    Its Python finds the modules of this folder, and with -P none of the working folder.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | {"PYTHONPATH": str(SCRIPTS)}


def run_measured(command: list[str]) -> Finished:
    """Run a process to its end, with the time to the first line of its stdout and its peak memory.

    Raises
    ------
    EngineError
        If it fails.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment())
    assert process.stdout is not None
    with process.stdout as stream:
        first_line = stream.readline()
        first_line_seconds = time.perf_counter() - start
        stream.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise EngineError(f"exit code {process.returncode} of {' '.join(command)}")
    seconds = time.perf_counter() - start
    return Finished(first_line.decode(), first_line_seconds, seconds, usage.ru_maxrss / 1024)


@contextlib.contextmanager
def work_folder(wanted: Path | None) -> Iterator[Path]:
    """Give the folder for converted models: the wanted one, which stays, or a temporary one."""
    with contextlib.ExitStack() as stack:
        folder = wanted or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()


@contextlib.contextmanager
def running(commands: Mapping[str, list[str]]) -> Iterator[dict[str, EngineProcess]]:
    """Start an engine by each command; they end with the block, and where one cannot be started.

    Raises
    ------
    EngineError
        If one ends at once.
    """
    with contextlib.ExitStack() as stack:
        engines: dict[str, EngineProcess] = {}
        for name, command in commands.items():
            engines[name] = EngineProcess(name, command)
            stack.callback(engines[name].close)
        yield engines


def versions_of(engines: Mapping[str, EngineProcess]) -> list[str]:
    """Return what the engines are, each version once."""
    return list(dict.fromkeys(engine.version for engine in engines.values()))


class EngineProcess:
    """An engine that waits for commands; see `serving`.

    Parameters
    ----------
    name : str
    command : list of str
        Starts it.
    """

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment()
        )
        self.version: str = self._answer()["version"]

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and wait for its answer, then until the engine's threads have gone to sleep.

        Raises
        ------
        EngineError
            If the process has ended.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Reading the answer tells better what happened.
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        time.sleep(SETTLE_SECONDS)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            exit_code = self._process.wait()
            self.close()
            raise EngineError(f"{self.name} has ended with exit code {exit_code}")
        answer: dict[str, Any] = json.loads(line)
        return answer
