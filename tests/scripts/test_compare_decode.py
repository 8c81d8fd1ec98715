"""The decode rates of two checkouts: both are asked in turns, each runs its own package."""

import json
from pathlib import Path

import compare_decode
import pytest

REPO = Path(__file__).resolve().parents[2]
DEMO = str(REPO / "weights" / "demo")


def test_both_checkouts_are_measured_in_turns(capsys, monkeypatch):
    monkeypatch.chdir(REPO)
    compare_decode.main([".", str(REPO), "weights/demo", "--runs", "2", "--tokens", "3", "--sequences", "2"])
    out, err = capsys.readouterr()
    *table, values = out.splitlines()
    found = json.loads(values)
    assert [[len(rates) for rates in both.values()] for both in found.values()] == [[2, 2], [2, 2]]
    assert all(rate > 0 for both in found.values() for rates in both.values() for rate in rates)
    assert [line.count("|") for line in table[2:]] == [6] * 4
    turns = [line.split(": ")[1] for line in err.splitlines() if "depth" in line]
    assert turns == ["new", "old", "old", "new", "new", "old"]


def test_a_folder_without_the_package_is_refused_by_its_name(tmp_path, capfd):
    with pytest.raises(SystemExit, match="old has ended with exit code 1"):
        compare_decode.main([str(tmp_path), str(REPO), DEMO, "--runs", "1"])
    assert f"{tmp_path} has no package tinychat" in capfd.readouterr().err


def test_the_ratio_is_that_of_each_run():
    values = {"old": [10.0, 20.0, 40.0], "new": [20.0, 20.0, 20.0]}
    line = compare_decode.row(compare_decode.Rate("decode", 5), values)
    assert line == "| decode at depth 0, tok/s | 20.0 | 20.0 | 1.000 x | 0.500 to 2.000 |"
