"""A batch that is stopped goes on where it was, and takes no results of another one for its own."""

import os
import subprocess
import sys
import time

import engines
import families
import pytest
from batches import STORY, TASKS, results_of
from fake_model import BOS, fake_model, interrupt_at

from tinychat.commands import batch_results
from tinychat.commands.batch_results import BatchResults
from tinychat.commands.batch_tasks import read_tasks
from tinychat.commands.loading import load_model
from tinychat.errors import ModelFolderError, SettingError
from tinychat.generate.request import Request
from tinychat.models.folder import model_fingerprint
from tinychat.rows.locations import Location
from tinychat.rows.sources import RowReader


def nothing_left(target):
    return f"nothing to do: {target} already has all {len(results_of(target))} results\n"


def test_ctrl_c_keeps_whole_results_and_the_next_run_goes_on(console, batch_files):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target, "--seed", "5")
    whole = [r["token_ids"] for r in results_of(target)]
    target.unlink()
    console.model = fake_model(STORY, has_template=False, before_step=interrupt_at(15))
    code, _, err = console.run("batch", source, "-o", target, "--seed", "5", "--parallel", 1)
    assert (code, err.splitlines()[-1]) == (
        130,
        "stopped after 1 rows: the same command continues with the rest",
    )
    assert [r["id"] for r in results_of(target)] == [1]
    console.model = fake_model(STORY, has_template=False)
    assert console.run("batch", source, "-o", target, "--seed", "5")[0] == 0
    assert [r["token_ids"] for r in results_of(target)] == whole
    # The first step may share its tokens with another prompt.
    first = console.model.sequence.steps[0]
    assert first == [BOS, *b"Twice"][: len(first)]


def test_at_temperature_0_two_runs_have_the_same_bytes_without_a_seed(console, batch_files):
    source, target = batch_files(TASKS)
    written = []
    for parallel in (1, 3):
        assert console.run("batch", source, "-o", target, "--temperature", "0", "--parallel", parallel)[0] == 0
        written.append(target.read_bytes())
        target.unlink()
    assert written[0] == written[1]
    assert written[0].count(b'"seed": 0}') == len(TASKS)


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_result_that_was_cut_is_computed_again(console, batch_files, cut):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target, "--seed", "5")
    whole = results_of(target)
    target.write_bytes(target.read_bytes()[:-cut])
    assert console.run("batch", source, "-o", target, "--seed", "5")[0] == 0
    assert [(r["id"], r["token_ids"]) for r in results_of(target)] == [(r["id"], r["token_ids"]) for r in whole]


def test_a_batch_that_is_killed_answers_every_line_once(batch_files, tmp_path):
    """Killed three times, at any moment, and started again: the results are those of a run that nobody disturbed."""
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    source, target = batch_files([{"prompt": f"line {i % 7} {i}", "temperature": 0.8, "seed": i} for i in range(60)])
    flags = ["--max-tokens", "20", "--raw", "--context", "96"]

    def run(path, *more):
        command = [sys.executable, "-m", "tinychat", "batch", str(source), str(folder), "-o", str(path), *flags, *more]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    for wanted in (1, 15, 40):
        process = run(target)
        while process.poll() is None and (not target.exists() or target.read_bytes().count(b"\n") < wanted):
            time.sleep(0.002)
        process.kill()
        process.wait()
    assert run(target).wait() == 0
    undisturbed = tmp_path / "undisturbed.jsonl"
    assert run(undisturbed, "--parallel", "1").wait() == 0
    found = [(result["id"], result["token_ids"]) for result in results_of(target)]
    assert found == [(result["id"], result["token_ids"]) for result in results_of(undisturbed)]
    assert [name for name, _ in found] == list(range(1, 61))


def test_an_error_before_the_next_result_keeps_those_that_are_there(console, batch_files):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target)
    first = target.read_bytes().splitlines(keepends=True)[0]
    target.write_bytes(first)

    def fail(name, options):
        raise ModelFolderError("damaged")

    console.load = fail
    assert console.run("batch", source, "-o", target)[0] == 1
    assert target.read_bytes() == first


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: b"precious", 1),
        (lambda lines: b"precious\n", 1),
        (lambda lines: lines[0].replace(b'"id": 1', b'"id": 2'), 1),
        (lambda lines: b'{"id": 1}\n', 1),
        (lambda lines: b'{"id": 1, "text": ""}\n', 1),
        (lambda lines: b'{"id": 1, "error": "of another program"}\n', 1),
        (lambda lines: lines[0] + b"precious", 2),
        (lambda lines: b"".join([*lines, lines[0]]), 4),
    ],
    ids=range(8),
)
def test_a_file_of_something_else_is_left_alone(console, batch_files, change, line):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target)
    content = change(target.read_bytes().splitlines(keepends=True))
    target.write_bytes(content)
    code, _, err = console.run("batch", source, "-o", target)
    what = f"error: {target} line {line} is not a result of this batch with these settings"
    assert (code, err) == (1, f"{what}: give another file with -o\n")
    assert target.read_bytes() == content


@pytest.mark.parametrize(
    "otherwise", [["--temperature", "0.5"], ["--raw"], ["another"], ["--kv", "int8"], ["--context", "64"]]
)
def test_results_of_other_settings_are_told_apart(console, batch_files, otherwise):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target)
    before = target.read_bytes()
    code, _, err = console.run("batch", source, *otherwise, "-o", target)
    assert (code, target.read_bytes()) == (1, before)
    assert "line 1 is not a result of this batch with these settings" in err


def test_results_of_other_prompts_are_told_apart(console, batch_files):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target)
    source, target = batch_files([TASKS[0], {"id": "b", "prompt": "Once"}, TASKS[2]])
    code, _, err = console.run("batch", source, "-o", target)
    assert code == 1
    assert "line 2 is not a result of this batch" in err


BROKEN = [{"prompt": 3}, TASKS[0], "{", TASKS[1], {"prompt": "Twice", "temperature": "hot"}]
MENDED = [TASKS[2], TASKS[0], {"id": "new", "prompt": "Twice"}, TASKS[1], {"prompt": "Twice", "temperature": 0.0}]


def failing(count, target):
    what = f'error: {count} of 5 rows failed: see "error" in {target}'
    return f"{what}; once they are mended, the same command answers them\n"


def test_mended_rows_are_answered_in_their_places(console, batch_files):
    source, target = batch_files(BROKEN)
    flags = "--seed", "5", "--parallel", 1
    assert console.run("batch", source, "-o", target, *flags)[0] == 1
    before = results_of(target)
    target.chmod(0o640)
    # Nothing to compute, and nothing is: the model has been loaded once.
    assert console.run("batch", source, "-o", target, *flags)[2] == nothing_left(target) + failing(3, target)
    assert len(console.loaded) == 1
    for mended, left in ((3, 1), (5, 0)):
        batch_files(MENDED[:mended] + BROKEN[mended:])
        # In the middle of the file, and past its end.
        for kept in (4, 5):
            cut = target.with_name(f"{kept}.jsonl")
            cut.write_bytes(b"".join(target.read_bytes().splitlines(keepends=True)[:kept]))
            code, _, err = console.run("batch", source, "-o", cut, *flags)
            assert (code, err.endswith(failing(left, cut))) == (int(left > 0), left > 0)
            assert [line.get("error", "") == "" for line in results_of(cut)] == [True] * 4 + [left == 0]
    results = results_of(cut)
    assert [result["id"] for result in results] == [1, 2, "new", "b", 5]
    assert [results[1], results[3]] == [before[1], before[3]]
    console.run("batch", source, "-o", target, *flags)
    assert target.read_bytes() == cut.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    # As if they had never been broken.
    target.unlink()
    console.run("batch", source, "-o", target, *flags)
    assert target.read_bytes() == cut.read_bytes()


def test_ctrl_c_keeps_the_rows_that_were_mended(console, batch_files):
    source, target = batch_files(BROKEN)
    console.run("batch", source, "-o", target, "--seed", "5")
    whole = target.read_bytes()
    batch_files(MENDED)
    console.model = fake_model(STORY, has_template=False, before_step=interrupt_at(8))
    code, _, err = console.run("batch", source, "-o", target, "--seed", "5", "--parallel", 1)
    assert (code, err.splitlines()[-1].partition(":")[0]) == (130, "stopped after 3 rows")
    lines, found = whole.splitlines(), target.read_bytes().splitlines()
    assert [line == old for line, old in zip(found, lines, strict=True)] == [False, True, True, True, True]
    console.model = fake_model(STORY, has_template=False)
    assert console.run("batch", source, "-o", target, "--seed", "5")[0] == 0


def test_rows_that_failed_take_no_results_of_other_settings(console, batch_files):
    source, target = batch_files(BROKEN)
    console.run("batch", source, "-o", target)
    before = target.read_bytes()
    batch_files(MENDED)
    code, _, err = console.run("batch", source, "-o", target, "--temperature", "0.5")
    assert (code, target.read_bytes()) == (1, before)
    assert "line 2 is not a result of this batch with these settings" in err


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_no_result_can_have_is_refused_and_kept(tmp_path, monkeypatch, end):
    monkeypatch.setattr(batch_results, "MAX_LINE_BYTES", 64)
    target = tmp_path / "out.jsonl"
    text = '{"id": "' + 100 * "x" + end
    target.write_text(text)
    (tmp_path / "in.jsonl").write_text('{"prompt": "hi"}')
    rows = RowReader(Location(str(tmp_path / "in.jsonl")))
    with pytest.raises(SettingError, match="line 1 is not a result of this batch"):
        BatchResults(target, read_tasks(rows, Request()))
    assert target.read_text() == text


@pytest.fixture
def folder(tmp_path):
    """Return a model folder as far as a stamp looks at it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tinychat.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_the_same_folder_under_another_path_is_the_same_model(console, batch_files, folder, monkeypatch):
    source, target = batch_files(TASKS)
    console.run("batch", source, folder, "-o", target)
    moved = folder.rename(folder.with_name("moved"))
    assert console.run("batch", source, moved, "-o", target) == (0, "", nothing_left(target))
    monkeypatch.chdir(moved.parent)
    assert console.run("batch", source, "moved", "-o", target) == (0, "", nothing_left(target))
    assert len(console.loaded) == 1


@pytest.mark.parametrize("file", ["tinychat.json", "tokenizer.json", "model.safetensors"])
def test_another_model_under_the_same_path_is_refused(console, batch_files, folder, file):
    source, target = batch_files(TASKS)
    console.run("batch", source, folder, "-o", target)
    (folder / file).write_bytes(b"[]")
    code, _, err = console.run("batch", source, folder, "-o", target)
    assert code == 1
    assert "line 1 is not a result of this batch with these settings" in err


def test_weights_of_the_same_size_are_told_apart_by_their_time(folder):
    before = model_fingerprint(folder)
    stat = (folder / "model.safetensors").stat()
    os.utime(folder / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
    assert model_fingerprint(folder) != before


def test_the_demo_model_is_the_same_by_name(console, batch_files):
    source, target = batch_files(TASKS)
    console.run("batch", source, "-o", target)
    assert console.run("batch", source, "demo", "-o", target) == (0, "", nothing_left(target))
    assert len(console.loaded) == 1


def test_a_checkpoint_is_known_again_once_it_is_converted(console, batch_files, tmp_path):
    console.load = load_model
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen2-tied"], tmp_path / "checkpoint")
    source, target = batch_files([{"prompt": "x", "max_tokens": 2}])
    assert console.run("batch", source, checkpoint, "-o", target)[0] == 0
    console.load = None
    assert console.run("batch", source, checkpoint, "-o", target) == (0, "", nothing_left(target))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_in_a_model_folder_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(OSError, match="not a regular file"):
        model_fingerprint(tmp_path)


def test_a_second_batch_into_the_same_file_is_told(console, batch_files):
    source, target = batch_files(TASKS)
    with BatchResults(target, []):
        code, out, err = console.run("batch", source, "story", "-o", target)
        assert (code, out) == (1, "")
        assert err.splitlines()[-1] == (
            f"error: another batch is writing to {target}: wait for it, or give another file with -o"
        )
        assert target.read_bytes() == b""
    assert console.run("batch", source, "story", "-o", target)[0] == 0
    assert len(results_of(target)) == 3


def test_a_file_that_was_taken_back_is_not_written_to(batch_files, monkeypatch):
    """Between opening and locking, whoever had it found an error and deleted it."""
    target = batch_files(TASKS)[1]

    def lock(file_number):
        target.unlink()
        return True

    monkeypatch.setattr(batch_results, "try_lock", lock)
    with pytest.raises(SettingError, match="another batch is writing"):
        BatchResults(target, [])
