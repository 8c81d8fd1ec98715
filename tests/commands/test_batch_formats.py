"""A batch reads and writes tables, compressed files, folders and addresses, and its answers are the same in each."""

import json
import os
from threading import Thread

import pytest
from batches import results_of
from fake_model import Continuation, fake_model, interrupt_at
from row_files import FORMATS, pyarrow, rows_of, unpacked, write_rows

ROWS = [{"id": f"r{i}", "text": ("Once", "Twice", "Thrice")[i % 3], "n": str(i)} for i in range(20)]
SAYS = Continuation({"Once": " upon a time", "Twice": " a day", "Thrice": " told"})
ASK = ("--prompt-column", "text", "--seed", "5", "--max-tokens", "6")
ANSWERS = ["reply", "finish_reason", "prompt_tokens", "new_tokens", "error"]


@pytest.fixture
def console(console):
    console.model = fake_model(SAYS, has_template=False)
    return console


def run(console, *arguments, code=0):
    found, out, err = console.run("batch", *arguments)
    assert (found, out) == (code, ""), err
    return err


def whole(console, folder):
    """Return the lines of a plain batch of the rows."""
    source = write_rows(folder / "whole.jsonl", ROWS)
    run(console, source, "-o", folder / "whole-out.jsonl", *ASK)
    return (folder / "whole-out.jsonl").read_bytes()


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gets_the_same_answers(console, tmp_path, suffix):
    expected = whole(console, tmp_path)
    source = write_rows(tmp_path / f"in.{suffix}", ROWS)
    run(console, source, "-o", tmp_path / "out.jsonl", *ASK)
    assert (tmp_path / "out.jsonl").read_bytes() == expected


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
def test_compressed_lines_are_the_lines(console, tmp_path, suffix):
    expected = whole(console, tmp_path)
    target = tmp_path / f"out.{suffix}"
    run(console, tmp_path / "whole.jsonl", "-o", target, *ASK)
    assert unpacked(target.read_bytes(), target.name) == expected
    assert not list(tmp_path.glob("*.journal*"))


@pytest.mark.parametrize("given", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_table_has_the_columns_of_its_source_and_of_answers(console, tmp_path, given, suffix):
    lines = [json.loads(line) for line in whole(console, tmp_path).splitlines()]
    source, target = write_rows(tmp_path / f"in.{given}", ROWS), tmp_path / f"out.{suffix}"
    run(console, source, "-o", target, *ASK)
    found = rows_of(target)
    assert [*found[0]] == ["id", "text", "n", *ANSWERS]
    assert [{name: row[name] for name in ROWS[0]} for row in found] == ROWS
    assert [row["reply"] for row in found] == [line["text"] for line in lines]
    assert [int(row["new_tokens"]) for row in found] == [line["new_tokens"] for line in lines]
    if suffix == "parquet":
        schema = pyarrow().parquet.read_schema(target)
        assert [str(schema.field(name).type) for name in ANSWERS] == ["string", "string", "int64", "int64", "string"]


def test_types_of_parquet_stay_and_rows_without_an_id_get_their_number(console, tmp_path):
    package = pyarrow()
    columns = {
        "text": package.array(["Once", "Twice"]),
        "small": package.array([1, None], package.int8()),
        "tags": package.array([["a"], []], package.list_(package.string())),
        "kind": package.array(["x", "y"]).dictionary_encode(),
    }
    package.parquet.write_table(package.table(columns), tmp_path / "in.parquet")
    run(console, tmp_path / "in.parquet", "-o", tmp_path / "out.parquet", *ASK)
    found = package.parquet.read_table(tmp_path / "out.parquet")
    assert found["id"].to_pylist() == [1, 2]
    for name, values in columns.items():
        assert found.schema.field(name).type == values.type
        assert found[name].to_pylist() == values.to_pylist()


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst", "csv", "csv.gz", "parquet"])
def test_merged_shards_are_the_bytes_of_one_run(console, tmp_path, suffix):
    kind = "parquet" if suffix == "parquet" else "csv"
    source = write_rows(tmp_path / f"in.{kind}", ROWS)
    target, merged = tmp_path / f"out.{suffix}", tmp_path / f"merged.{suffix}"
    run(console, source, "-o", target, *ASK)
    parts = [tmp_path / f"{shard}.{suffix}" for shard in range(3)]
    for shard, part in enumerate(parts):
        run(console, source, "-o", part, *ASK, "--shard", f"{shard}/3")
    flags = [word for part in parts for word in ("--merge", part)]
    err = run(console, source, "-o", merged, "--prompt-column", "text", *flags)
    assert err == f"merged 20 results of 3 files, one for each row: {merged}\n"
    assert merged.read_bytes() == target.read_bytes()
    code, _, err = console.run("batch", source, "-o", tmp_path / f"no.{suffix}", "--prompt-column", "text", *flags[2:])
    assert (code, (tmp_path / f"no.{suffix}").exists()) == (1, False)
    assert "has no result: answer all shards first" in err


def test_lines_of_shards_are_merged_into_a_table(console, tmp_path):
    source = write_rows(tmp_path / "in.csv", ROWS)
    run(console, source, "-o", tmp_path / "out.csv", *ASK)
    flags = []
    for shard in range(2):
        run(console, source, "-o", tmp_path / f"{shard}.jsonl", *ASK, "--shard", f"{shard}/2")
        flags += ["--merge", tmp_path / f"{shard}.jsonl"]
    run(console, source, "-o", tmp_path / "merged.csv", "--prompt-column", "text", *flags)
    assert (tmp_path / "merged.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    problem = run(
        console, source, "-o", tmp_path / "x.jsonl", *ASK, flags[0], flags[1], "--merge", tmp_path / "out.csv", code=1
    )
    assert "merge files of one format" in problem
    problem = run(
        console, source, "-o", tmp_path / "x.jsonl", "--prompt-column", "text", "--merge", tmp_path / "out.csv", code=1
    )
    assert "is a table, which cannot be merged into" in problem


def test_a_folder_is_written_as_a_folder(console, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    write_rows(source / "b.jsonl.gz", ROWS[:7])
    write_rows(source / "a.csv", ROWS[7:])
    run(console, source, "-o", f"{target}/", *ASK)
    assert sorted(path.name for path in target.iterdir()) == ["a.csv", "b.jsonl.gz"]
    assert [row["reply"] for row in rows_of(target / "b.jsonl.gz") if "reply" in row] == []
    replies = [row["text"] for row in rows_of(target / "b.jsonl.gz")]
    assert replies == [line["text"] for line in map(json.loads, whole(console, tmp_path).splitlines())][:7]
    assert [row["id"] for row in rows_of(target / "a.csv")] == [row["id"] for row in ROWS[7:]]
    assert "has results already" in run(console, source, "-o", target, *ASK, code=1)
    # A folder may be written into one file, too.
    run(console, source, "-o", tmp_path / "one.csv", *ASK)
    assert [row["id"] for row in rows_of(tmp_path / "one.csv")] == [row["id"] for row in ROWS[7:] + ROWS[:7]]
    assert "is a folder, but" in run(console, source / "a.csv", "-o", target, *ASK, code=2)
    assert "whose files are read" in run(console, source, "-o", source / "out.jsonl", *ASK, code=2)


def test_an_address_is_written_at_the_end(console, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    expected = whole(console, tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    memory = fsspec.filesystem("memory")
    memory.pipe("/batch-of-a-test/in.jsonl", (tmp_path / "whole.jsonl").read_bytes())
    run(console, "memory://batch-of-a-test/in.jsonl", "-o", "memory://batch-of-a-test/out/out.jsonl", *ASK)
    assert memory.cat("/batch-of-a-test/out/out.jsonl") == expected
    assert [*(tmp_path / "here").iterdir()] == []
    err = run(console, tmp_path / "whole.jsonl", "-o", "memory://batch-of-a-test/out/out.jsonl", *ASK, code=1)
    assert "has results already" in err


def test_a_table_that_was_stopped_goes_on_from_its_journal(console, tmp_path):
    source, target, journal = write_rows(tmp_path / "in.csv", ROWS), tmp_path / "out.csv", tmp_path / "out.csv.journal"
    run(console, source, "-o", tmp_path / "whole.csv", *ASK)
    console.model = fake_model(SAYS, has_template=False, before_step=interrupt_at(30))
    err = run(console, source, "-o", target, *ASK, "--parallel", 1, code=130)
    done = len(results_of(journal))
    assert 0 < done < 20
    assert err.splitlines()[-1] == f"stopped after {done} rows: the same command continues with the rest"
    assert not target.exists()
    console.model = fake_model(SAYS, has_template=False)
    run(console, source, "-o", target, *ASK)
    assert target.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not journal.exists()
    assert "has results already: give another name with -o" in run(console, source, "-o", target, *ASK, code=1)


def test_a_source_that_changes_meanwhile_is_told(console, tmp_path):
    source, target = write_rows(tmp_path / "in.csv", ROWS), tmp_path / "out.csv"

    def change(count):
        if count == 1:
            write_rows(source, ROWS[:-1])

    console.model = fake_model(SAYS, has_template=False, before_step=change)
    err = run(console, source, "-o", target, *ASK, code=1)
    assert "the rows have changed while they were answered: give another file with -o" in err
    assert not target.exists()


def test_columns_that_ask(console, tmp_path):
    seen = []
    console.model = fake_model(lambda ids: seen.append(list(ids)) or 257, has_template=False)
    rows = [{"text": "a", "max_tokens": "3", "stop": "x"}, {"text": "b", "max_tokens": None, "stop": None}]
    source = write_rows(tmp_path / "in.csv", rows)
    run(console, source, "-o", tmp_path / "out.jsonl", "--template", "Say {text}: {text}", "--parallel", 1)
    for text in ("Say a: a", "Say b: b"):
        assert console.model.encode(text) in seen
    console.model = fake_model(lambda ids: None, has_template=False)
    flags = ["--setting-column", "max_tokens", "--setting-column", "stop"]
    run(
        console,
        source,
        "-o",
        tmp_path / "two.jsonl",
        "--prompt-column",
        "text",
        *flags,
        "--max-tokens",
        5,
        "--temperature",
        0,
    )
    assert [row["new_tokens"] for row in results_of(tmp_path / "two.jsonl")] == [3, 5]


def test_rows_that_cannot_be_answered_have_their_error(console, tmp_path):
    rows = [
        {"text": "Once", "seed": "1"},
        {"text": "Once", "seed": "-1"},
        {"text": "", "seed": "x"},
        {"text": "Twice", "seed": ""},
    ]
    source = write_rows(tmp_path / "in.csv", rows)
    flags = ["--prompt-column", "text", "--setting-column", "seed"]
    err = run(console, source, "-o", tmp_path / "out.csv", *flags, code=1)
    assert err.splitlines()[-1] == f'error: 2 of 4 rows failed: see "error" in {tmp_path / "out.csv"}'
    found = rows_of(tmp_path / "out.csv")
    assert [row["reply"] for row in found] == [" upon a time", "", "", " a day"]
    assert [row["error"][:20] for row in found] == ["", "seed must be 0 or mo", "text must be a text ", ""]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "size": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "home": {"$ref": "#/$defs/Home"},
        "any": {},
    },
    "required": ["name", "age"],
    "$defs": {"Home": {"type": "object", "properties": {"city": {"type": "string"}, "is_old": {"type": "boolean"}}}},
}
TEXTS = {
    "Ada": '{"name":"Ada","age":36,"size":1.5,"tags":["a"],"home":{"city":"L","is_old":true},"any":[1]}',
    "Bob": '{"name":"Bob","age":99999999999999999999}',
    "Cut": '{"name":"' + "c" * 300,
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_schema_from_a_pipe_is_read_once(console, tmp_path):
    pytest.importorskip("llguidance")
    console.model = fake_model(Continuation({"Ada": '{"age":36}'}), has_template=False)
    os.mkfifo(tmp_path / "schema")
    schema = json.dumps({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]})
    writer = Thread(target=(tmp_path / "schema").write_text, args=(schema,))
    writer.start()
    source = write_rows(tmp_path / "in.csv", [{"text": "Ada"}])
    run(console, source, "-o", tmp_path / "out.csv", "--prompt-column", "text", "--schema", tmp_path / "schema")
    writer.join()
    assert [row["age"] for row in rows_of(tmp_path / "out.csv")] == ["36"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_properties_of_a_schema_are_columns(console, tmp_path, suffix):
    pytest.importorskip("llguidance")
    console.model = fake_model(Continuation(TEXTS), has_template=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    source = write_rows(tmp_path / f"in.{suffix}", [{"text": text} for text in TEXTS])
    target = tmp_path / f"out.{suffix}"
    flags = ["--prompt-column", "text", "--schema", tmp_path / "schema.json", "--temperature", 0, "--max-tokens", 120]
    err = run(console, source, "-o", target, *flags, code=suffix == "parquet" or 1)
    ada, bob, cut = rows_of(target)
    assert [*ada] == ["id", "text", *ANSWERS, *SCHEMA["properties"]]
    assert ada["reply"] == TEXTS["Ada"] and not ada["error"]
    if suffix == "csv":
        assert (ada["age"], ada["tags"], ada["home"]) == ("36", '["a"]', '{"city": "L", "is_old": true}')
        assert bob["age"] == "99999999999999999999"
    else:
        assert {name: ada[name] for name in SCHEMA["properties"]} == json.loads(TEXTS["Ada"]) | {"any": "[1]"}
        types = [str(pyarrow().parquet.read_schema(target).field(name).type) for name in SCHEMA["properties"]]
        assert types[:4] == ["string", "int64", "double", "list<element: string>"]
        assert types[4:] == ["struct<city: string, is_old: bool>", "string"]
        assert (bob["reply"], bob["age"], bob["error"][:37]) == (
            TEXTS["Bob"],
            None,
            "the reply's age is not of its type: P",
        )
        assert err.splitlines()[-1] == f'error: 2 of 3 rows failed: see "error" in {target}'
    assert cut["error"].startswith("the reply is not JSON: ")
    assert cut["reply"].startswith('{"name":"ccc')


@pytest.mark.parametrize(
    ("rows", "flags", "code", "problem"),
    [
        ([{"a": "x"}], [], 1, "has no column 'prompt', only a: name one of these with --prompt-column"),
        ([{"a": "x"}], ["--template", "{a} {b}"], 1, "has no column 'b'"),
        ([{"a": "x", "reply": "y"}], ["--prompt-column", "a"], 1, "have a column 'reply' already: rename it"),
        ([{"a": "x"}], ["--setting-column", "a"], 1, "--setting-column has 'a'; expected some of temperature"),
    ],
)
def test_columns_that_do_not_fit_end_the_batch_before_a_model_is_loaded(console, tmp_path, rows, flags, code, problem):
    source, target = write_rows(tmp_path / "in.csv", rows), tmp_path / "out.csv"
    assert problem in run(console, source, "-o", target, *flags, code=code)
    assert console.loaded == []
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_results_that_fit_into_lines_only_are_refused(console, tmp_path):
    line = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}
    source = write_rows(tmp_path / "in.jsonl", [line])
    assert "its result fits into .jsonl only" in run(console, source, "-o", tmp_path / "out.csv", code=1)


def test_a_stream_has_no_columns_for_a_table(console, tmp_path):
    code, _, err = console.run("batch", "-", "-o", tmp_path / "out.csv", stdin=b'{"prompt": "Once"}\n')
    assert (code, "can be read once only" in err) == (2, True)


def test_a_damaged_source_keeps_the_results_so_far(console, tmp_path):
    source = write_rows(tmp_path / "in.jsonl.gz", [{"prompt": f"{i} {i * 7919 % 1000} Once"} for i in range(2000)])
    source.write_bytes(source.read_bytes()[:-3000])
    target = tmp_path / "out.jsonl"
    err = run(console, source, "-o", target, "--max-tokens", 1, "--temperature", 0, code=1)
    assert err.splitlines()[-1].startswith(f"error: {source} is damaged, or not in the format of its name: ")
    assert results_of(target)
