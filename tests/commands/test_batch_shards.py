"""Shards of a batch, merged, are the bytes of one run; a row too few or too many is told."""

import os
import subprocess
import sys
import time

import engines
import pytest
from batches import TASKS, results_of

from tinychat.commands.batch_shards import shard_of

ROWS = [{"id": f"row {number}", "prompt": "Once"} for number in range(20)] + TASKS


def parts_of(console, source, folder, count):
    parts = [folder / f"{shard}-of-{count}.jsonl" for shard in range(count)]
    for shard, part in enumerate(parts):
        assert console.run("batch", source, "-o", part, "--seed", "5", "--shard", f"{shard}/{count}")[0] == 0
    return parts


def merge(console, source, parts, target):
    return console.run("batch", source, "-o", target, *[word for part in parts for word in ("--merge", part)])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_merged_shards_are_the_bytes_of_one_run(console, batch_files, tmp_path, count):
    source, whole = batch_files(ROWS)
    assert console.run("batch", source, "-o", whole, "--seed", "5")[0] == 0
    parts = parts_of(console, source, tmp_path, count)
    merged = tmp_path / "merged.jsonl"
    code, _, err = merge(console, source, parts, merged)
    assert (code, err) == (0, f"merged {len(ROWS)} results of {count} files, one for each row: {merged}\n")
    assert merged.read_bytes() == whole.read_bytes()
    # Their order does not matter.
    assert merge(console, source, parts[::-1], merged)[0] == 0
    assert merged.read_bytes() == whole.read_bytes()


def test_a_row_stays_in_its_shard_wherever_it_stands():
    assert [shard_of(name, 4) for name in ("a", "b", "1", 1, "é")] == [2, 2, 1, 1, 3]


def test_rows_that_are_missing_or_double_are_told_and_nothing_is_written(console, batch_files, tmp_path):
    source, target = batch_files(ROWS)
    parts = parts_of(console, source, tmp_path, 2)
    first = results_of(parts[0])[0]["id"]

    def problem(*files):
        code, _, err = merge(console, source, files, target)
        assert (code, target.exists()) == (1, False)
        return err

    assert "has no result: answer all shards first" in problem(parts[0])
    assert f"row {first!r} has two results" in problem(*parts, parts[0])
    lines = parts[1].read_bytes().splitlines(keepends=True)
    parts[1].write_bytes(b"".join([*lines, lines[-1]]))
    assert "belongs to no row, or is its second one" in problem(*parts)
    parts[1].write_bytes(b"".join(lines)[:-1])
    assert "is not a whole result: finish its shard first" in problem(*parts)
    parts[1].write_bytes(b"[]\n")
    assert f"{parts[1]} line 1 is not a whole result" in problem(*parts)


def test_a_merge_does_not_replace_its_parts(console, batch_files, tmp_path):
    source, _ = batch_files(ROWS)
    parts = parts_of(console, source, tmp_path, 2)
    before = parts[0].read_bytes()
    assert "is one of the files to merge" in merge(console, source, parts, parts[0])[2]
    assert parts[0].read_bytes() == before


@pytest.mark.parametrize("shard", ["2/2", "1", "a/b", "-1/2", "0/0"])
def test_a_shard_that_cannot_be_is_refused(console, batch_files, shard):
    source, target = batch_files(ROWS)
    code, _, err = console.run("batch", source, "-o", target, "--shard", shard)
    assert (code, target.exists()) == (2, False)
    assert "is not I/N with I from 0 to N - 1" in err


def test_a_merge_takes_all_shards(console, batch_files):
    source, target = batch_files(ROWS)
    assert console.run("batch", source, "-o", target, "--shard", "0/2", "--merge", target)[0] == 2


def test_a_killed_shard_goes_on_to_the_same_bytes(batch_files, tmp_path):
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    source, whole = batch_files([{"prompt": f"line {i % 7} {i}", "temperature": 0.8, "seed": i} for i in range(60)])

    def run(path, *more):
        command = [sys.executable, "-m", "tinychat", "batch", str(source), "-o", str(path), *more]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)

    flags = [str(folder), "--max-tokens", "20", "--raw", "--context", "96"]
    parts = [tmp_path / f"{shard}.jsonl" for shard in range(2)]
    process = run(parts[0], *flags, "--shard", "0/2")
    while process.poll() is None and (not parts[0].exists() or parts[0].read_bytes().count(b"\n") < 5):
        time.sleep(0.002)
    process.kill()
    process.wait()
    for shard, part in enumerate(parts):
        assert run(part, *flags, "--shard", f"{shard}/2").wait() == 0
    assert run(whole, *flags).wait() == 0
    merged = tmp_path / "merged.jsonl"
    assert run(merged, "--merge", str(parts[0]), "--merge", str(parts[1])).wait() == 0
    assert merged.read_bytes() == whole.read_bytes()
