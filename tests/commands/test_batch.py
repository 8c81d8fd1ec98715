import json
import os
import re
import signal
import subprocess
import sys
import time

import engines
import families
import pytest
from console import Console
from fake_model import BOS, Continuation, fake_model

from tinychat.commands import batch_results
from tinychat.commands.batch_results import BatchResults
from tinychat.commands.batch_tasks import read_tasks
from tinychat.commands.loading import load_model
from tinychat.errors import ModelFolderError, SettingError
from tinychat.generate.request import Request
from tinychat.models.folder import model_stamp

STORY = Continuation({"Once": " upon a time", "Twice": " a day"})
TASKS = [{"prompt": "Once"}, {"id": "b", "prompt": "Twice"}, {"prompt": "Once", "max_tokens": 3}]


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(STORY, has_template=False), monkeypatch, capsys)


@pytest.fixture
def files(tmp_path):
    """Return a function that writes IN.jsonl, of objects or lines, and returns both paths."""

    def write(lines):
        source = tmp_path / "in.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", errors="surrogateescape")
        return source, tmp_path / "out.jsonl"

    return write


def results_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def nothing_left(target):
    return f"nothing is left to answer: {target} has {len(results_of(target))} results\n"


def test_a_cut_line_fails_where_that_is_wanted(console, files):
    source, target = files(TASKS)
    assert console.run("batch", source, "story", "-o", target, "--fail-on-cut")[0] == 3
    assert console.run("batch", source, "story", "-o", target, "--fail-on-cut")[0] == 3, "of an earlier run too"
    assert console.run("batch", source, "story", "-o", target)[0] == 0


def test_every_line_gets_its_result_in_order(console, files):
    source, target = files([*TASKS, ""])
    code, out, err = console.run("batch", source, "story", "-o", target, "--seed", "5")
    assert (code, out) == (0, "")
    title, summary = err.splitlines()
    assert title == "answering in.jsonl"
    assert re.fullmatch(
        rf"answered 3 of 3 lines, 1 of them cut: {target}; this time 21 tokens in .* s, .* tok/s", summary
    )
    assert [(r["id"], r["text"], r["finish_reason"], r["truncated"]) for r in results_of(target)] == [
        (1, " upon a time", "stop", False),
        ("b", " a day", "stop", False),
        (3, " up", "length", True),
    ]
    last = results_of(target)[2]
    assert (last["prompt_tokens"], last["new_tokens"], last["token_ids"], last["seed"]) == (5, 3, list(b" up"), 5)
    assert [name for name, _ in console.loaded] == ["story"]


def test_stdin_and_stdout_are_written_as_a_dash(console, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{json.dumps(task)}\n" for task in TASKS).encode()
    code, out, err = console.run("batch", "-", "story", "-o", "-", "--seed", "5", stdin=lines)
    assert (code, err.splitlines()[0]) == (0, "answering stdin")
    assert err.splitlines()[1].startswith("answered 3 of 3 lines, 1 of them cut: stdout; this time 21 tokens")
    source, target = files(TASKS)
    assert console.run("batch", source, "story", "-o", target, "--seed", "5")[0] == 0
    untimed = [
        [{key: value for key, value in result.items() if "second" not in key} for result in results]
        for results in ([json.loads(line) for line in out.splitlines()], results_of(target))
    ]
    assert untimed[0] == untimed[1]
    code, out, err = console.run("batch", "-", "-o", "-", stdin=b"{\n")
    assert (code, out.count("\n")) == (1, 1)
    assert err.endswith('error: 1 of 1 lines have no answer: see "error" in the results\n')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_messages_go_through_the_template_and_prompts_as_the_flags_say(console, files):
    seen = []
    console.model = fake_model(lambda ids: seen.append(list(ids)) or 257)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    source, target = files([{"messages": messages}, {"prompt": "u"}])
    assert console.run("batch", source, "-o", target, "--system", "s", "--parallel", 1)[0] == 0
    assert seen[0] == seen[1] == console.model.render_ids(messages)
    target.unlink()
    assert console.run("batch", source, "-o", target, "--raw", "--parallel", 1)[0] == 0
    assert seen[2:] == [seen[0], console.model.encode("u")]


def test_a_line_may_have_settings_of_its_own(console, files):
    console.model = fake_model(lambda ids: None, has_template=False)
    wild = {"prompt": "x", "top_k": 0, "top_p": 1, "min_p": 0.0, "temperature": 2.0}
    lines = [wild | {"seed": 1}, wild | {"seed": 2}, wild | {"seed": 1, "id": 1}, {"prompt": "x", "stop": None}]
    source, target = files(lines)
    assert console.run("batch", source, "-o", target, "--max-tokens", "9", "--temperature", "0")[0] == 0
    first, second, third, greedy = (r["token_ids"] for r in results_of(target))
    assert first == third != second
    assert greedy == [0] * 9
    source, target = files([{"prompt": "Once", "stop": "time"}, {"prompt": "Once", "stop": ["on", "x"]}])
    console.model = fake_model(STORY, has_template=False)
    target.unlink()
    assert console.run("batch", source, "-o", target, "--stop", "p")[0] == 0
    assert [r["text"] for r in results_of(target)] == [" upon a ", " up"]


BAD_LINES = [
    ("{", "the line is not JSON in UTF-8"),
    ('{"prompt": "caf\udce9"}', "the line is not JSON in UTF-8"),
    ("[" * 100_000, "the line is not JSON in UTF-8"),
    ("3", "the line is not a JSON object"),
    ({}, "either prompt or messages"),
    ({"prompt": None}, "either prompt or messages"),
    ({"prompt": "x", "messages": []}, "either prompt or messages"),
    ({"prompt": 3}, "prompt must be a text"),
    ({"messages": []}, "messages must be a list"),
    ({"messages": ["x"]}, "messages must be a list"),
    ({"messages": [{"role": "user"}]}, "messages must be a list"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages must be a list"),
    ({"prompt": "x", "temprature": 1}, "the key 'temprature' is not known"),
    ({"prompt": "x", "temperature": "hot"}, "temperature must be a number"),
    ({"prompt": "x", "temperature": True}, "temperature must be a number"),
    ('{"prompt": "x", "temperature": NaN}', "temperature must be between"),
    ({"prompt": "x", "top_k": 1.5}, "top_k must be a whole number"),
    ({"prompt": "x", "top_k": -1}, "top_k must be 0"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens must be 1 or more"),
    ({"prompt": "x", "stop": [3]}, "stop must be a text or a list of texts"),
    ({"prompt": "x", "stop": ""}, "stop must not be empty"),
    ({"prompt": "x", "id": [3]}, "id must be a text or a whole number"),
    ({"prompt": "y" * 300}, "301 tokens but the context holds 256"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=[message for _, message in BAD_LINES])
def test_a_bad_line_has_its_error_in_its_place(console, files, line, message):
    source, target = files([TASKS[0], line, TASKS[1]])
    code, out, err = console.run("batch", source, "-o", target)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == f'error: 1 of 3 lines have no answer: see "error" in {target}'
    first, bad, last = results_of(target)
    assert (first["text"], last["text"]) == (" upon a time", " a day")
    assert bad.keys() == {"id", "asked", "error"}
    assert bad["id"] == 2
    assert message in bad["error"]
    # Started again, nothing is left to do, and the code still tells.
    assert console.run("batch", source, "-o", target)[0] == 1
    assert len(console.loaded) == 1


def test_a_bad_line_keeps_its_id(console, files):
    source, target = files([{"id": "mine", "prompt": 3}])
    assert console.run("batch", source, "-o", target)[0] == 1
    assert results_of(target)[0]["id"] == "mine"


def test_ctrl_c_keeps_whole_results_and_the_next_run_goes_on(console, files):
    def interrupt(count):
        if count == 15:
            signal.raise_signal(signal.SIGINT)

    source, target = files(TASKS)
    console.run("batch", source, "-o", target, "--seed", "5")
    whole = [r["token_ids"] for r in results_of(target)]
    target.unlink()
    console.model = fake_model(STORY, has_template=False, before_step=interrupt)
    code, _, err = console.run("batch", source, "-o", target, "--seed", "5", "--parallel", 1)
    assert (code, err.splitlines()[-1]) == (
        130,
        "stopped after 1 of 3 lines: the same command goes on with the others",
    )
    assert [r["id"] for r in results_of(target)] == [1]
    console.model = fake_model(STORY, has_template=False)
    assert console.run("batch", source, "-o", target, "--seed", "5")[0] == 0
    assert [r["token_ids"] for r in results_of(target)] == whole
    assert console.model.sequence.steps[0] == [BOS, *b"Twice"]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_result_that_was_cut_is_computed_again(console, files, cut):
    source, target = files(TASKS)
    console.run("batch", source, "-o", target, "--seed", "5")
    whole = results_of(target)
    target.write_bytes(target.read_bytes()[:-cut])
    assert console.run("batch", source, "-o", target, "--seed", "5")[0] == 0
    assert [(r["id"], r["token_ids"]) for r in results_of(target)] == [(r["id"], r["token_ids"]) for r in whole]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: b"precious", 1),
        (lambda lines: b"precious\n", 1),
        (lambda lines: lines[0].replace(b'"id": 1', b'"id": 2'), 1),
        (lambda lines: b'{"id": 1}\n', 1),
        (lambda lines: b'{"id": 1, "text": ""}\n', 1),
        (lambda lines: lines[0] + b"precious", 2),
        (lambda lines: b"".join([*lines, lines[0]]), 4),
    ],
    ids=range(7),
)
def test_a_file_of_something_else_is_left_alone(console, files, change, line):
    source, target = files(TASKS)
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
def test_results_of_other_settings_are_told_apart(console, files, otherwise):
    source, target = files(TASKS)
    console.run("batch", source, "-o", target)
    before = target.read_bytes()
    code, _, err = console.run("batch", source, *otherwise, "-o", target)
    assert (code, target.read_bytes()) == (1, before)
    assert "line 1 is not a result of this batch with these settings" in err


def test_results_of_other_prompts_are_told_apart(console, files):
    source, target = files(TASKS)
    console.run("batch", source, "-o", target)
    source, target = files([TASKS[0], {"id": "b", "prompt": "Once"}, TASKS[2]])
    code, _, err = console.run("batch", source, "-o", target)
    assert code == 1
    assert "line 2 is not a result of this batch" in err


def test_in_and_out_must_differ(console, files):
    source, _ = files(TASKS)
    code, _, err = console.run("batch", source, "-o", source)
    assert code == 2
    assert "the same file" in err
    assert results_of(source) == TASKS


def test_a_file_that_is_missing_is_named(console, tmp_path):
    missing = tmp_path / "missing"
    expected = (1, "", f"error: No such file or directory: {missing}; check the path\n")
    assert console.run("batch", missing, "-o", tmp_path / "out") == expected


def test_a_broken_model_ends_the_batch(console, files):
    def fail(count):
        raise ModelFolderError("the model's output is not a number")

    console.model = fake_model(STORY, has_template=False, before_step=fail)
    source, target = files(TASKS)
    code, _, err = console.run("batch", source, "-o", target)
    assert (code, err.splitlines()[-1]) == (1, "error: the model's output is not a number")
    assert not target.exists()


def test_a_model_that_does_not_load_leaves_no_file(console, files, tmp_path):
    console.load = load_model
    source, target = files(TASKS)
    code, _, err = console.run("batch", source, "nomodel", "-o", target)
    assert (code, target.exists()) == (1, False)
    assert "'nomodel' is not a folder" in err
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tinychat.json").write_text("{")
    assert console.run("batch", source, broken, "-o", target)[0] == 1
    assert not target.exists()


def test_an_error_before_the_next_result_keeps_those_that_are_there(console, files):
    source, target = files(TASKS)
    console.run("batch", source, "-o", target)
    first = target.read_bytes().splitlines(keepends=True)[0]
    target.write_bytes(first)

    def fail(name, options):
        raise ModelFolderError("damaged")

    console.load = fail
    assert console.run("batch", source, "-o", target)[0] == 1
    assert target.read_bytes() == first


def test_no_lines_give_an_empty_file(console, files):
    source, target = files([])
    assert console.run("batch", source, "-o", target)[0] == 0
    assert target.read_bytes() == b""


@pytest.fixture
def folder(tmp_path):
    """Return a model folder as far as a stamp looks at it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tinychat.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_the_same_folder_under_another_path_is_the_same_model(console, files, folder, monkeypatch):
    source, target = files(TASKS)
    console.run("batch", source, folder, "-o", target)
    moved = folder.rename(folder.with_name("moved"))
    assert console.run("batch", source, moved, "-o", target) == (0, "", nothing_left(target))
    monkeypatch.chdir(moved.parent)
    assert console.run("batch", source, "moved", "-o", target) == (0, "", nothing_left(target))
    assert len(console.loaded) == 1


@pytest.mark.parametrize("file", ["tinychat.json", "tokenizer.json", "model.safetensors"])
def test_another_model_under_the_same_path_is_refused(console, files, folder, file):
    source, target = files(TASKS)
    console.run("batch", source, folder, "-o", target)
    (folder / file).write_bytes(b"[]")
    code, _, err = console.run("batch", source, folder, "-o", target)
    assert code == 1
    assert "line 1 is not a result of this batch with these settings" in err


def test_weights_of_the_same_size_are_told_apart_by_their_time(folder):
    before = model_stamp(folder)
    stat = (folder / "model.safetensors").stat()
    os.utime(folder / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
    assert model_stamp(folder) != before


def test_the_demo_model_is_the_same_by_name(console, files):
    source, target = files(TASKS)
    console.run("batch", source, "-o", target)
    assert console.run("batch", source, "demo", "-o", target) == (0, "", nothing_left(target))
    assert len(console.loaded) == 1


def test_a_checkpoint_is_known_again_once_it_is_converted(console, files, tmp_path):
    console.load = load_model
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen2-tied"], tmp_path / "checkpoint")
    source, target = files([{"prompt": "x", "max_tokens": 2}])
    assert console.run("batch", source, checkpoint, "-o", target)[0] == 0
    console.load = None
    assert console.run("batch", source, checkpoint, "-o", target) == (0, "", nothing_left(target))


@pytest.mark.parametrize(
    ("line", "flags", "times"),
    [
        ({"prompt": "x"}, [], 0),
        ({"prompt": "x"}, ["--chat"], 1),
        ({"prompt": "x"}, ["--system", "s"], 1),
        ({"messages": [{"role": "user", "content": "x"}]}, [], 1),
    ],
)
def test_conversations_without_template_are_said_once(console, files, line, flags, times):
    source, target = files([line, line])
    _, _, err = console.run("batch", source, "-o", target, *flags)
    assert err.count("this model has no chat template: it continues a plain dialogue instead\n") == times


def test_lines_share_what_they_begin_with(console, files, tmp_path):
    console.load = load_model
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    beginning = "Once upon a time there was a hill. " * 3
    source, target = files([{"prompt": beginning + end} for end in ("It", "There", "And")])
    assert console.run("batch", source, folder, "-o", target, "--max-tokens", "3")[0] == 0
    first, *others = results_of(target)
    assert first["reused_tokens"] == 0
    for result in others:
        assert result["reused_tokens"] >= 64


def test_a_schema_holds_for_every_line(console, files, tmp_path):
    pytest.importorskip("llguidance")
    console.model = fake_model(lambda ids: None, has_template=False)
    (tmp_path / "schema").write_text('{"enum": ["yes", "no"]}')
    source, target = files([{"prompt": "x", "seed": seed} for seed in range(6)])
    assert console.run("batch", source, "-o", target, "--schema", tmp_path / "schema", "--top-k", "0")[0] == 0
    assert {json.loads(r["text"]) for r in results_of(target)} == {"yes", "no"}


def test_a_decoder_says_in_a_batch_what_it_says_alone(console, files, tmp_path):
    console.load = load_model
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    prompts = ["Once upon a time", "Once upon a hill", "x", "Once upon a time"]
    source, target = files([{"prompt": prompt} for prompt in prompts])
    flags = ["--seed", "3", "--max-tokens", "12"]
    assert console.run("batch", source, folder, "-o", target, *flags)[0] == 0
    for prompt, result in zip(prompts, results_of(target), strict=True):
        code, out, _ = console.run("complete", folder, "-p", prompt, "--json", *flags)
        assert code == 0
        assert json.loads(out)["token_ids"] == result["token_ids"]


@pytest.mark.parametrize(
    ("command", "example"),
    [("complete", 'git diff | tinychat complete "Summarise'), ("batch", '{"prompt": "Name three colours.", "max')],
)
def test_examples_in_the_help_keep_their_lines(console, command, example):
    _, out, _ = console.run(command, "--help")
    assert f"\n  {example}" in out
    assert "\\b" not in out
    assert "pip install '.[constrain]' in the clone" in " ".join(out.split())


def test_a_second_batch_into_the_same_file_is_told(console, files):
    source, target = files(TASKS)
    with BatchResults(target, []):
        code, out, err = console.run("batch", source, "story", "-o", target)
        assert (code, out) == (1, "")
        assert err.splitlines()[-1] == (
            f"error: another batch is writing to {target}: wait for it, or give another file with -o"
        )
        assert target.read_bytes() == b""
    assert console.run("batch", source, "story", "-o", target)[0] == 0
    assert len(results_of(target)) == 3


def test_a_file_that_was_taken_back_is_not_written_to(files, monkeypatch):
    """Between opening and locking, whoever had it found an error and deleted it."""
    target = files(TASKS)[1]

    def lock(file_number):
        target.unlink()
        return True

    monkeypatch.setattr(batch_results, "try_lock", lock)
    with pytest.raises(SettingError, match="another batch is writing"):
        BatchResults(target, [])


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_no_result_can_have_is_refused_and_kept(tmp_path, monkeypatch, end):
    monkeypatch.setattr(batch_results, "_MAX_LINE_BYTES", 64)
    target = tmp_path / "out.jsonl"
    text = '{"id": "' + 100 * "x" + end
    target.write_text(text)
    with pytest.raises(SettingError, match="line 1 is not a result of this batch"):
        BatchResults(target, read_tasks(b'{"prompt": "hi"}', Request()))
    assert target.read_text() == text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_in_a_model_folder_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(OSError, match="not a regular file"):
        model_stamp(tmp_path)


def openai_line(name, url="/v1/chat/completions", **body):
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "any", **body}}


def test_openais_lines_get_results_in_their_form(console, files):
    console.model = fake_model(Continuation({"hi": " there", "Once": " upon"}), has_template=True)
    message = {"role": "user", "content": "hi"}
    parts = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    lines = [
        openai_line("a", messages=[message], max_completion_tokens=3, temperature=0, n=1),
        openai_line("b", "/v1/completions", prompt="Once", stop=["p"], seed=3),
        openai_line("c", messages=[parts], max_tokens=3, temperature=0),
        openai_line("d", messages=[message], tools=[]),
        openai_line("e", "/v1/embeddings", input="x"),
        openai_line("f", messages=[message], n=2),
    ]
    source, target = files([*lines, TASKS[0]])
    assert console.run("batch", source, "fake", "-o", target)[0] == 1
    *results, ours = results_of(target)
    assert ours["id"] == 7
    assert [result["custom_id"] for result in results] == list("abcdef")
    assert [result["response"]["status_code"] for result in results] == [200, 200, 200, 400, 400, 400]
    assert {result["error"] for result in results} == {None}
    first, second, third = (result["response"]["body"] for result in results[:3])
    assert first["object"] == "chat.completion"
    assert first["model"] == "fake"
    (choice,) = first["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"] == third["choices"][0]["message"]
    assert choice["finish_reason"] in ("stop", "length")
    assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert (second["object"], second["choices"][0]["text"]) == ("text_completion", " u")
    problems = [result["response"]["body"]["error"]["message"] for result in results[3:]]
    assert problems == [
        "tools is not supported",
        "url must be /v1/chat/completions or /v1/completions",
        "n must be 1",
    ]
    before = target.read_bytes()
    assert console.run("batch", source, "fake", "-o", target)[0] == 1
    assert target.read_bytes() == before, "all have their results"


def test_a_batch_that_is_killed_answers_every_line_once(files, tmp_path):
    """Killed three times, at any moment, and started again: the results are those of a run that nobody disturbed."""
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    source, target = files([{"prompt": f"line {i % 7} {i}", "temperature": 0.8, "seed": i} for i in range(60)])
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
