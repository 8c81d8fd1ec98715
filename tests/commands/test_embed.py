"""`tinychat embed`: texts from lines, vectors as JSON lines or an array; nothing half."""

import json

import numpy as np
import pytest
from fake_model import VOCAB_SIZE

from tinychat.models.embedder import Embedder


def rows_of(out):
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def texts(tmp_path):
    """Return a function that writes a file of texts."""

    def write(data, name="texts.txt"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


def test_a_vector_for_each_line(console, texts):
    code, out, err = console.run("embed", texts(b"one\r\n\n \nthree words here\n"), "some-model", "--threads", "2")
    assert (code, err) == (0, "embedded 2 texts, 21 tokens, as 261 numbers each: stdout\n")
    assert [(name, options.threads) for name, options in console.loaded] == [("some-model", 2)]
    rows = rows_of(out)
    assert [(row["id"], row["tokens"]) for row in rows] == [(1, 4), (4, 17)]
    expected = console.model.embed(["one", "three words here"])
    assert np.array([row["embedding"] for row in rows], np.float32).tobytes() == expected.tobytes()


def test_stdin_and_the_last_token(console):
    code, out, _ = console.run("embed", "-", "--pooling", "last", stdin="\ufeffthe end".encode())
    assert code == 0
    (row,) = rows_of(out)
    assert np.argmax(row["embedding"]) == ord("d")


def test_fields_of_json_objects_and_their_ids(console, texts):
    lines = [{"id": "a", "title": "x"}, {"title": "y", "id": 7, "more": []}, {"title": "z", "id": None}]
    file = texts("\n".join(map(json.dumps, lines)).encode())
    code, out, _ = console.run("embed", file, "--field", "title")
    assert (code, [row["id"] for row in rows_of(out)]) == (0, ["a", 7, 3])


def test_an_array(console, texts, tmp_path):
    target = tmp_path / "vectors.npy"
    assert console.run("embed", texts(b"one\ntwo"), "-o", target)[:2] == (0, "")
    found = np.load(target)
    assert (found.dtype, found.tobytes()) == (np.float32, console.model.embed(["one", "two"]).tobytes())
    assert console.run("embed", texts(b"\n"), "-o", target)[0] == 0
    assert np.load(target).shape == (0, VOCAB_SIZE)


def test_a_prompt_of_the_model(console, texts):
    console.model.embedder = Embedder("last", {"query": "Query:", "document": ""})
    code, out, _ = console.run("embed", texts(b"one"), "--prompt", "query")
    assert (code, rows_of(out)[0]["tokens"]) == (0, len("Query:one") + 1)
    code, out, err = console.run("embed", texts(b"one"), "--prompt", "question")
    assert (code, out, err) == (1, "", "error: --prompt 'question' must be one of query, document\n")


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        (b"one\n\xff", (), "texts.txt line 2 is not text in UTF-8"),
        (b'{"a": "one"}\n{', ("--field", "a"), "texts.txt line 2 is not JSON in UTF-8"),
        (b'{"b": "one"}', ("--field", "a"), "texts.txt line 1 is not a JSON object with a text under 'a'"),
        (b"[1]", ("--field", "a"), "texts.txt line 1 is not a JSON object with a text under 'a'"),
        (b"one\n" + b"a" * 300, (), "texts.txt line 2: the prompt has 301 tokens but the context holds 256"),
    ],
)
def test_errors_name_the_line_and_leave_nothing(console, texts, tmp_path, data, flags, message):
    file, target = texts(data), tmp_path / "out.jsonl"
    code, out, err = console.run("embed", file, "-o", target, *flags)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and message in err and err.count("\n") == 1
    assert [*tmp_path.iterdir()] == [file]


def test_what_was_there_stays_until_all_is_done(console, texts, tmp_path):
    file, target = texts(b"one\nlonger than a step"), tmp_path / "out.jsonl"
    target.write_text("earlier")
    steps = iter(range(1))

    def run_once(chunks, run=console.model.engine.hidden_states):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return run(chunks)

    console.model.engine.hidden_states = run_once
    assert console.run("embed", file, "-o", target)[0] == 130
    assert (target.read_text(), sorted(tmp_path.iterdir())) == ("earlier", [target, file])


def test_an_embedding_model_chats_with_nobody(console):
    console.model.writes = False
    code, out, err = console.run("chat", "some-model", stdin=b"Hello\n")
    assert (code, out) == (1, "")
    assert "error: fake gives embeddings, not text: use `tinychat embed`, or choose another model" in err
    assert console.model.sequence.steps == []


def test_work_that_takes_long_shows_that_it_goes_on(console, texts, monkeypatch):
    monkeypatch.setattr("tinychat.commands.text_lines._SILENT_SECONDS", -1.0)
    assert console.run("embed", texts(b"one"))[2].splitlines()[0] == "embedding"
