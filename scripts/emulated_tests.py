"""Plugin of pytest for emulate.py: note each result, leave out what has passed before, tell of each file as it ends.

Emulated tests take hours. The journal that TINYCHAT_TEST_JOURNAL names has a line for each, so that a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


class Result:
    """The outcome of a test, and its seconds."""

    def __init__(self, outcome: str = "passed", seconds: float = 0.0) -> None:
        self.outcome = outcome
        self.seconds = seconds


def file_of(test: str) -> str:
    return test.partition("::")[0]


class Journal:
    """The results of an instruction set, over all runs; a later one of a test replaces an earlier."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Result] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            test, outcome, seconds = json.loads(line)
            self.results[test] = Result(outcome, seconds)

    def passed(self, test: str) -> bool:
        """Return whether a test has passed."""
        return test in self.results and self.results[test].outcome == "passed"

    def add(self, test: str, result: Result) -> None:
        """Note the result of a test."""
        self.results[test] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([test, result.outcome, round(result.seconds, 1)]) + "\n")

    def line(self, file: str) -> str:
        """Return how many tests of a file passed, failed and were skipped, and in what time."""
        found = [result for test, result in self.results.items() if file_of(test) == file]
        counts = Counter(result.outcome for result in found)
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
        return f"{file}: {told}, {sum(result.seconds for result in found):.0f} s"


def compile_elsewhere(socket: str) -> None:
    """Let a process outside compile forward passes, deferred functions and kernels of the package."""
    from native_compiler import FORWARD, ask, dispatcher

    from tinychat.engine import compiling, second_compiler
    from tinychat.kernels.numba_internals import KernelCache

    load = KernelCache._load_overload

    def function_of(cache: Any) -> str | None:
        module, name = cache._py_func.__module__, cache._py_func.__name__
        for function in (f"{module}.{name}", f"{module}:{name}") if module.startswith("tinychat.") else ():
            with suppress(KeyError, AttributeError):
                if dispatcher(function)._cache is cache:
                    return function
        return None

    def load_or_ask(cache: Any, signature: Any, context: Any) -> Any:
        found, function = load(cache, signature, context), function_of(cache)
        if found is None and function is not None:
            found = cache._impl.rebuild(context, ask(socket, function, tuple(signature)))
        return found

    internals: Any = compiling, second_compiler, KernelCache
    internals[0].object_code = lambda _function, types: ask(socket, FORWARD, types)
    # One in here would only take its time.
    internals[1].MOST = 0
    internals[2]._load_overload = load_or_ask


class Plugin:
    """The hooks of pytest."""

    def __init__(self, journal: Journal, isa: str) -> None:
        self.journal = journal
        self.isa = isa
        self.left: Counter[str] = Counter()
        self.result = Result()

    def pytest_sessionstart(self) -> None:
        """Prepare the first compilation; behind conftest.py, which prepares the imports."""
        if socket := os.environ.get("TINYCHAT_COMPILER"):
            compile_elsewhere(socket)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed."""
        before = [item for item in items if self.journal.passed(item.nodeid)]
        items[:] = [item for item in items if not self.journal.passed(item.nodeid)]
        config.hook.pytest_deselected(items=before)
        self.left = Counter(file_of(item.nodeid) for item in items)

    def pytest_runtest_logstart(self) -> None:
        """Begin a test."""
        self.result = Result()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one of the three phases of a test."""
        self.result.seconds += report.duration
        if report.outcome != "passed":
            self.result.outcome = report.outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test, and perhaps its file."""
        self.journal.add(nodeid, self.result)
        file = file_of(nodeid)
        self.left[file] -= 1
        if not self.left[file]:
            print(f"\n{self.isa}: {self.journal.line(file)}", flush=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell of all files."""
        terminalreporter.section(f"{self.isa}, all runs with these sources")
        for file in sorted({file_of(test) for test in self.journal.results}):
            terminalreporter.line(self.journal.line(file))


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ["TINYCHAT_TEST_JOURNAL"]
    config.pluginmanager.register(Plugin(Journal(Path(path)), os.environ["TINYCHAT_ISA"]))
