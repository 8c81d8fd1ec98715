"""`scripts/measure_start.py`: what is started, and the parts of a start."""

from argparse import Namespace
from pathlib import Path

import measure_start
from comparison import measuring
from comparison.processes import Finished


def test_llama_cpp_runs_as_many_tokens(monkeypatch):
    monkeypatch.setattr(measuring, "prompt_tokens", lambda command: 31 if "--json" in command else None)
    commands = measure_start.start_commands(Namespace(llama_python="python", threads=2), Path("model.gguf"))
    assert [*commands] == ["tinychat", "llama.cpp"]
    assert "--json" not in commands["tinychat"]
    assert commands["llama.cpp"][-5:] == ["model.gguf", "--threads", "2", "--once", "31"]
    assert [*measure_start.start_commands(Namespace(llama_python=None, threads=2), Path())] == ["tinychat"]


def test_every_part_of_a_start_takes_time(monkeypatch):
    monkeypatch.setenv("TINYCHAT_HOME", "")
    parts = measure_start.profile("demo", 1)
    assert [*parts] == [*measure_start.PARTS]
    assert all(seconds > 0 for seconds in parts.values())


def test_the_tables_show_medians():
    starts = {"tinychat": [Finished("a", seconds, 9.0, 200.0) for seconds in (0.5, 0.3, 0.4)]}
    found = measure_start.tables(starts, {"NumPy": 0.07, "llvmlite": 0.03})
    assert "| tinychat | 0.400 | 0.300 | 200 |" in found
    assert found.endswith("| NumPy | 70 |\n| llvmlite | 30 |\n| all | 100 |")
