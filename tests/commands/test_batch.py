"""Every line of a batch gets its result, in order, as it would alone."""

import json
import re
import sys
from contextlib import contextmanager

import engines
import pytest
from batches import STORY, TASKS, results_of
from fake_model import fake_model

from tinychat.commands import batch
from tinychat.commands.loading import load_model
from tinychat.errors import ModelFolderError


def test_a_cut_line_fails_where_that_is_wanted(console, batch_files):
    source, target = batch_files(TASKS)
    assert console.run("batch", source, "story", "-o", target, "--fail-on-cut")[0] == 3
    assert console.run("batch", source, "story", "-o", target, "--fail-on-cut")[0] == 3, "of an earlier run too"
    assert console.run("batch", source, "story", "-o", target)[0] == 0


def test_every_line_gets_its_result_in_order(console, batch_files):
    source, target = batch_files([*TASKS, ""])
    code, out, err = console.run("batch", source, "story", "-o", target, "--seed", "5")
    assert (code, out) == (0, "")
    title, summary = err.splitlines()
    assert title == "answering in.jsonl"
    assert re.fullmatch(
        rf"answered 3 of 3 rows, 1 of them cut: {target}; this run: 21 tokens in .* s, .* tok/s; "
        "0% of the prompts from the cache",
        summary,
    )
    assert [(r["id"], r["text"], r["finish_reason"], r["truncated"]) for r in results_of(target)] == [
        (1, " upon a time", "stop", False),
        ("b", " a day", "stop", False),
        (3, " up", "length", True),
    ]
    last = results_of(target)[2]
    assert (last["prompt_tokens"], last["new_tokens"], last["token_ids"], last["seed"]) == (5, 3, list(b" up"), 5)
    assert [name for name, _ in console.loaded] == ["story"]


@pytest.mark.parametrize(("flags", "rows"), [([], [0, 1, 2, 3]), (["--shard", "0/2"], [0, 1])])
def test_a_bar_shows_the_rows_that_are_answered_of_all(console, batch_files, monkeypatch, flags, rows):
    source, target = batch_files([*TASKS, ""])
    shown = []

    @contextmanager
    def bar(_title, note):
        yield lambda done, total: shown.append((done, total, note().partition(" rows")[0]))

    monkeypatch.setattr(batch, "progress_bar", bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert console.run("batch", source, "-o", target, "--parallel", 1, *flags)[0] == 0
    total = len(results_of(target))
    assert [*dict.fromkeys(shown)] == [(done, total, f"{done} of {total}") for done in rows]
    # Those of an earlier run count.
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(lines[:-1]))
    shown.clear()
    assert console.run("batch", source, "-o", target, *flags)[0] == 0
    assert [*dict.fromkeys(done for done, *_ in shown)] == [total - 1, total]


def test_stdin_and_stdout_are_written_as_a_dash(console, batch_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{json.dumps(task)}\n" for task in TASKS).encode()
    code, out, err = console.run("batch", "-", "story", "-o", "-", "--seed", "5", stdin=lines)
    assert (code, err.splitlines()[0]) == (0, "answering stdin")
    assert err.splitlines()[1].startswith("answered 3 of 3 rows, 1 of them cut: stdout; this run: 21 tokens")
    source, target = batch_files(TASKS)
    assert console.run("batch", source, "story", "-o", target, "--seed", "5")[0] == 0
    # The second run finds more in the cache of the same model, and has other times.
    assert out == target.read_text(encoding="utf-8")
    code, out, err = console.run("batch", "-", "-o", "-", stdin=b"{\n")
    assert (code, out.count("\n")) == (1, 1)
    assert err.endswith('error: 1 of 1 rows failed: see "error" in the results\n')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_messages_go_through_the_template_and_prompts_as_the_flags_say(console, batch_files):
    seen = []
    console.model = fake_model(lambda ids: seen.append(list(ids)) or 257)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    source, target = batch_files([{"messages": messages}, {"prompt": "u"}])
    assert console.run("batch", source, "-o", target, "--system", "s", "--parallel", 1)[0] == 0
    assert seen[0] == seen[1] == console.model.render_ids(messages)
    target.unlink()
    assert console.run("batch", source, "-o", target, "--raw", "--parallel", 1)[0] == 0
    assert seen[2:] == [seen[0], console.model.encode("u")]


def test_a_line_may_have_settings_of_its_own(console, batch_files):
    console.model = fake_model(lambda ids: None, has_template=False)
    wild = {"prompt": "x", "top_k": 0, "top_p": 1, "min_p": 0.0, "temperature": 2.0}
    lines = [wild | {"seed": 1}, wild | {"seed": 2}, wild | {"seed": 1, "id": 1}, {"prompt": "x", "stop": None}]
    source, target = batch_files(lines)
    assert console.run("batch", source, "-o", target, "--max-tokens", "9", "--temperature", "0")[0] == 0
    first, second, third, greedy = (r["token_ids"] for r in results_of(target))
    assert first == third != second
    assert greedy == [0] * 9
    source, target = batch_files([{"prompt": "Once", "stop": "time"}, {"prompt": "Once", "stop": ["on", "x"]}])
    console.model = fake_model(STORY, has_template=False)
    target.unlink()
    assert console.run("batch", source, "-o", target, "--stop", "p")[0] == 0
    assert [r["text"] for r in results_of(target)] == [" upon a ", " up"]


BAD_LINES = [
    ("{", "the line is not JSON in UTF-8"),
    ('{"prompt": "caf\udce9"}', "the line is not JSON in UTF-8"),
    ("[" * 100_000, "the line is not JSON in UTF-8"),
    ("3", "the line is not a JSON object"),
    ({}, "either the key prompt or the key messages"),
    ({"prompt": None}, "either the key prompt or the key messages"),
    ({"prompt": "x", "messages": []}, "either the key prompt or the key messages"),
    ({"prompt": 3}, "prompt must be a text"),
    ({"messages": []}, "messages must be a list"),
    ({"messages": ["x"]}, "messages[0] must be an object"),
    ({"messages": [{"role": "user"}]}, "messages[0].content must be a text"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a text"),
    ({"prompt": "x", "temprature": 1}, "unknown key 'temprature'"),
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
def test_a_bad_line_has_its_error_in_its_place(console, batch_files, line, message):
    source, target = batch_files([TASKS[0], line, TASKS[1]])
    code, out, err = console.run("batch", source, "-o", target)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        f'error: 1 of 3 rows failed: see "error" in {target}; once they are mended, the same command answers them'
    )
    first, bad, last = results_of(target)
    assert (first["text"], last["text"]) == (" upon a time", " a day")
    assert bad.keys() == {"id", "asked", "error"}
    assert bad["id"] == 2
    assert message in bad["error"]
    # Started again, nothing is left to do where the line itself is wrong, and the code still tells.
    assert console.run("batch", source, "-o", target)[0] == 1
    assert len(console.loaded) == 1 + ("context holds" in message)
    assert results_of(target) == [first, bad, last]


def test_a_bad_line_keeps_its_id(console, batch_files):
    source, target = batch_files([{"id": "mine", "prompt": 3}])
    assert console.run("batch", source, "-o", target)[0] == 1
    assert results_of(target)[0]["id"] == "mine"


def test_in_and_out_must_differ(console, batch_files):
    source, _ = batch_files(TASKS)
    code, _, err = console.run("batch", source, "-o", source)
    assert code == 2
    assert "the same file" in err
    assert results_of(source) == TASKS


def test_a_file_that_is_missing_is_named(console, tmp_path):
    missing = tmp_path / "missing"
    expected = (1, "", f"error: No such file or directory: {missing}; check the path\n")
    assert console.run("batch", missing, "-o", tmp_path / "out") == expected


def test_a_broken_model_ends_the_batch(console, batch_files):
    def fail(count):
        raise ModelFolderError("the model's output is not a number")

    console.model = fake_model(STORY, has_template=False, before_step=fail)
    source, target = batch_files(TASKS)
    code, _, err = console.run("batch", source, "-o", target)
    assert (code, err.splitlines()[-1]) == (1, "error: the model's output is not a number")
    assert not target.exists()


def test_a_model_that_does_not_load_leaves_no_file(console, batch_files, tmp_path):
    console.load = load_model
    source, target = batch_files(TASKS)
    code, _, err = console.run("batch", source, "nomodel", "-o", target)
    assert (code, target.exists()) == (1, False)
    assert "'nomodel' is not a folder" in err
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tinychat.json").write_text("{")
    assert console.run("batch", source, broken, "-o", target)[0] == 1
    assert not target.exists()


def test_no_lines_give_an_empty_file(console, batch_files):
    source, target = batch_files([])
    said = (0, "", f"nothing to do: {source} has no rows\n")
    assert console.run("batch", source, "-o", target) == said
    assert target.read_bytes() == b""
    assert console.run("batch", source, "-o", "-") == said


def test_a_table_without_a_byte_is_said_to_have_no_rows(console, tmp_path):
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes(b"")
    assert console.run("batch", source, "-o", target) == (0, "", f"nothing to do: {source} has no rows\n")


def test_a_shard_without_rows_does_not_blame_the_file(console, batch_files):
    source, target = batch_files([{"prompt": "Once"}])
    lines = [console.run("batch", source, "-o", target, "--shard", f"{shard}/2")[2] for shard in range(2)]
    assert f"nothing to do: {source} has no rows of this shard\n" in lines


@pytest.mark.parametrize(
    ("line", "flags", "times"),
    [
        ({"prompt": "x"}, [], 0),
        ({"prompt": "x"}, ["--chat"], 1),
        ({"prompt": "x"}, ["--system", "s"], 1),
        ({"messages": [{"role": "user", "content": "x"}]}, [], 1),
    ],
)
def test_conversations_without_template_are_said_once(console, batch_files, line, flags, times):
    source, target = batch_files([line, line])
    _, _, err = console.run("batch", source, "-o", target, *flags)
    assert err.count("this model has no chat template: it continues a plain dialogue instead\n") == times


def test_lines_share_what_they_begin_with(console, batch_files, tmp_path):
    console.load = load_model
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    beginning = "Once upon a time there was a hill. " * 3
    source, target = batch_files([{"prompt": beginning + end} for end in ("It", "There", "And")])
    code, _, err = console.run("batch", source, folder, "-o", target, "--max-tokens", "3")
    assert code == 0
    tokens = sum(result["prompt_tokens"] for result in results_of(target))
    shared = int(re.search(r"; (\d+)% of the prompts from the cache", err)[1]) / 100 * tokens
    assert 2 * 64 <= shared < 2 / 3 * tokens


def test_a_schema_holds_for_every_line(console, batch_files, tmp_path):
    pytest.importorskip("llguidance")
    console.model = fake_model(lambda ids: None, has_template=False)
    (tmp_path / "schema").write_text('{"enum": ["yes", "no"]}')
    source, target = batch_files([{"prompt": "x", "seed": seed} for seed in range(6)])
    assert console.run("batch", source, "-o", target, "--schema", tmp_path / "schema", "--top-k", "0")[0] == 0
    assert {json.loads(r["text"]) for r in results_of(target)} == {"yes", "no"}


def test_a_decoder_says_in_a_batch_what_it_says_alone(console, batch_files, tmp_path):
    console.load = load_model
    folder = engines.convert_variant("qwen2-tied", "int4", tmp_path / "model")
    prompts = ["Once upon a time", "Once upon a hill", "x", "Once upon a time"]
    source, target = batch_files([{"prompt": prompt} for prompt in prompts])
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
    assert "needs the package llguidance" in " ".join(out.split())
