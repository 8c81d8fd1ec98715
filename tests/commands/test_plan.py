"""tinychat plan with the demo model and made-up rates: its numbers and its errors."""

import json
import re

import pytest
from console import Console

import tinychat
from tinychat.bench.batch_rates import BatchRates
from tinychat.commands.batch_shards import shard_of
from tinychat.engine.ids import common_length

RATES = BatchRates(2, 16_000_000_000, 20.0, 30, 10, {1: 1000.0, 8: 4000.0}, {1: 100.0, 8: 400.0})
PROMPTS = [f"Tell me a story about {i} cats." for i in range(40)]


@pytest.fixture(scope="module")
def demo():
    with tinychat.load("demo", threads=1) as model:
        yield model


@pytest.fixture
def console(demo, monkeypatch, capsys):
    return Console(demo, monkeypatch, capsys)


@pytest.fixture
def rows(batch_files):
    return batch_files([{"id": i, "prompt": prompt} for i, prompt in enumerate(PROMPTS)])[0]


@pytest.fixture
def rates(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"model": "demo", "batches": RATES.as_json()}))
    return path


def test_time_and_cost_follow_from_tokens_and_rates(console, demo, rows, rates):
    flags = ["--rates", rates, "--machines", 3, "--cores", 4, "--price-per-hour", 36, "--sample", 0, "--max-tokens", 10]
    code, out, _ = console.run("plan", rows, "demo", *flags, "--json")
    assert code == 0
    found = json.loads(out)
    ids = [demo.text_prompt(prompt).ids for prompt in PROMPTS]
    assert found["prompt_tokens"] == sum(map(len, ids))
    shares = [[i for i in range(40) if shard_of(i, 3) == machine] for machine in range(3)]
    assert (found["rows"], found["most_rows_of_a_machine"]) == (40, max(map(len, shares)))
    assert found["new_tokens"] == 400
    cached = [
        max(common_length(ids[row], ids[other]) for other in share[:i])
        for share in shares
        for i, row in enumerate(share)
        if i
    ]
    assert found["cached_tokens"] == sum(cached)
    read = found["prompt_tokens"] - found["cached_tokens"]
    # Twice the cores, and a model in the caches of the processor.
    assert found["machine_seconds"] == pytest.approx(read / 8000 + 400 / 800, rel=0.01)
    assert found["cost"] == pytest.approx(3 * 36 * found["seconds"] / 3600)
    assert found["machine"] == {"cores": 4, "memory": 16_000_000_000, "bandwidth_gb_s": 40.0}


def test_a_person_reads_the_answer_first(console, rows, rates):
    flags = ["--rates", rates, "--machines", 2, "--price-per-hour", 3600, "--sample", 0, "--max-tokens", 4000]
    code, out, err = console.run("plan", rows, "demo", *flags)
    assert (code, err) == (0, "")
    first, *rest = out.splitlines()
    # The fuller machine has 25 of the rows, and over 10 seconds for each.
    assert re.fullmatch(r"about 5 min on 2 machines of 2 cores, 5\d\d\.\d\d at 3,600\.00 an hour", first)
    assert rest[0] == "rows      40, 25 at most on a machine"
    assert any(line.startswith("replies") and "4,000.0 each: the limit of all of them" in line for line in rest)


def test_replies_are_as_long_as_those_of_a_sample(console, demo, rows, rates):
    flags = ["--temperature", 0, "--max-tokens", 12, "--rates", rates, "--json"]
    code, out, _ = console.run("plan", rows, "demo", *flags, "--sample", 100)
    assert code == 0
    replies = demo.generate_many([demo.text_prompt(prompt).ids for prompt in PROMPTS], temperature=0, max_tokens=12)
    mean = sum(len(reply.token_ids) for reply in replies) / 40
    assert json.loads(out)["new_tokens_a_row"] == pytest.approx(mean, rel=0.1)


def test_what_it_wrote_has_rates_for_another_plan(console, rows, rates, tmp_path):
    flags = ["--sample", 0, "--max-tokens", 10, "--json"]
    _, out, _ = console.run("plan", rows, "demo", *flags, "--rates", rates)
    again = tmp_path / "again.json"
    again.write_text(out)
    assert console.run("plan", rows, "demo", *flags, "--rates", again)[:2] == (0, out)


def test_rows_that_cannot_be_answered_are_counted_apart(console, batch_files, rates):
    source, _ = batch_files([{"prompt": "Hello"}, "nothing", {"prompt": "x " * 20_000}])
    code, out, _ = console.run("plan", source, "demo", "--rates", rates, "--sample", 0, "--max-tokens", 5)
    assert code == 0
    assert "1; 2 more cannot be answered" in out


def test_a_table_is_planned_as_its_lines_are(console, rows, rates, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("id,n,max_tokens\n" + "".join(f"{i},{i},10\n" for i in range(40)))
    flags = ["--rates", rates, "--sample", 0, "--json"]
    _, lines, _ = console.run("plan", rows, "demo", *flags, "--max-tokens", 10)
    asked = ["--template", "Tell me a story about {n} cats."]
    assert console.run("plan", table, "demo", *flags, *asked, "--max-tokens", 10) == (0, lines, "")
    assert console.run("plan", table, "demo", *flags, *asked, "--setting-column", "max_tokens") == (0, lines, "")
    code, _, err = console.run("plan", table, "demo", *flags)
    assert code == 1 and "has no column 'prompt'" in err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--sample", 0], "--sample 0 needs the length of all replies: give --max-tokens"),
        (["--memory", 0.1], "a machine has 0.10 GB of memory and"),
        (["--raw", "--system", "x"], "--system needs the chat template"),
    ],
)
def test_what_cannot_be_planned_is_one_line(console, rows, rates, flags, problem):
    code, out, err = console.run("plan", rows, "demo", "--rates", rates, *flags, "--max-tokens", 5)
    if flags == ["--sample", 0]:
        code, out, err = console.run("plan", rows, "demo", "--rates", rates, *flags)
    assert (code != 0, out) == (True, "")
    assert problem in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "has no rates of the model demo: write it with `tinychat bench demo --batches`"),
        ('{"model": "demo"}', "has no rates of many replies at once: write it with"),
        ("nothing", "is not valid JSON"),
    ],
)
def test_files_without_rates(console, rows, tmp_path, content, problem):
    path = tmp_path / "rates.json"
    path.write_text(content)
    code, out, err = console.run("plan", rows, "demo", "--rates", path, "--max-tokens", 5)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {path} ") and problem in err


def test_no_rows(console, tmp_path, rates):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    code, _, err = console.run("plan", empty, "demo", "--rates", rates)
    assert (code, err) == (1, f"error: {empty} has no rows that can be answered\n")
    code, _, err = console.run("plan", tmp_path / "none.jsonl", "demo")
    assert code == 1 and "none.jsonl" in err and len(err.splitlines()) == 1
