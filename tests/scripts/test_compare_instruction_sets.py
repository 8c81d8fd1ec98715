"""Kernels of several instruction sets: all are asked in turns, each process has its own."""

import json
from pathlib import Path

import compare_instruction_sets
import pytest

from tinychat.kernels.setup import INSTRUCTION_SET

REPO = Path(__file__).resolve().parents[2]
DEMO = str(REPO / "weights" / "demo")


def test_each_is_measured_in_turns(capsys):
    again = f"{REPO}:{INSTRUCTION_SET}"
    counts = ["--prompts", "9", "--depths", "0", "--at-once", "2"]
    compare_instruction_sets.main([INSTRUCTION_SET, again, DEMO, "--runs", "2", *counts])
    out, err = capsys.readouterr()
    *table, values = out.splitlines()
    found = json.loads(values)
    assert [{name: len(rates) for name, rates in each.items()} for each in found.values()] == [
        {INSTRUCTION_SET: 2, again: 2}
    ] * 3
    assert [line.count("|") for line in table[2:]] == [5] * 5
    turns = [line.split(": ")[1] for line in err.splitlines() if "prefill" in line]
    assert len(turns) == 6 and turns[:2] == turns[4:] != turns[2:4]


def test_a_folder_without_an_environment_ends_in_a_line(tmp_path):
    with pytest.raises(SystemExit, match=f"{tmp_path}:avx2 has ended with exit code"):
        compare_instruction_sets.main([INSTRUCTION_SET, f"{tmp_path}:avx2", DEMO, "--runs", "1"])


def test_one_alone_is_refused(capsys):
    with pytest.raises(SystemExit):
        compare_instruction_sets.main(["avx2", DEMO])
    assert "name two instruction sets or more" in capsys.readouterr().err


def test_ratios_are_of_the_first_to_each_other():
    values = {"a": [10.0, 20.0, 40.0], "b": [20.0, 20.0, 20.0], "c": [10.0, 10.0, 10.0]}
    line = compare_instruction_sets.row(compare_instruction_sets.Rate("decode", 5), values)
    assert line == "| decode at depth 0, tok/s | 20.0 | 20.0 | 10.0 | 1.000 x | 2.000 x |"
