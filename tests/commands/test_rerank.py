"""`tinychat rerank`: lines in the order of how well they answer a query."""

import json

import numpy as np
import pytest
import rankers

import tinychat

QUERY, DOCUMENTS = rankers.QUERY, [text.strip() for text in rankers.DOCUMENTS]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranker")
    rankers.write_ranker(rankers.BY_NAME["bert"], folder / "checkpoint")
    return tinychat.load(tinychat.convert(folder / "checkpoint", folder / "model", quant="f32"), context=256)


@pytest.fixture
def ranks(console, ranker):
    console.model = ranker
    return console


def test_the_best_line_comes_first(ranks, ranker, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    code, out, err = ranks.run("rerank", QUERY, file, "some-model", "--threads", "1")
    rows = [json.loads(line) for line in out.splitlines()]
    scores = ranker.rank(QUERY, DOCUMENTS)
    order = np.argsort(-scores, kind="stable")
    assert code == 0 and err.startswith("ranked 4 texts, ")
    assert [row["text"] for row in rows] == [DOCUMENTS[i] for i in order]
    assert [row["id"] for row in rows] == [2 * i + 1 for i in order]
    assert [np.float32(row["score"]) for row in rows] == [scores[i] for i in order]
    code, best, _ = ranks.run("rerank", QUERY, file, "--top", "1")
    assert (code, best) == (0, out.splitlines(keepends=True)[0])


def test_fields_of_objects_from_stdin(ranks):
    lines = [{"id": "ä", "title": "é"}, {"title": "b"}]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    code, out, _ = ranks.run("rerank", QUERY, "-", "--field", "title", stdin=stdin)
    assert code == 0
    assert {(row["id"], row["text"]) for row in map(json.loads, out.splitlines())} == {("ä", "é"), (2, "b")}


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("a\n" + "b" * 400, (), "line 2: "),
        ("a", ("--instruction", "Judge."), "--instruction does nothing"),
        ("a", ("--field", "title"), "line 1 is not JSON"),
    ],
)
def test_errors_are_one_line(ranks, tmp_path, data, flags, message):
    file = tmp_path / "texts.txt"
    file.write_text(data)
    code, out, err = ranks.run("rerank", QUERY, file, *flags)
    assert (code != 0, out, err.count("\n")) == (True, "", 1)
    assert message in err


def test_no_texts(ranks, tmp_path):
    (tmp_path / "none.txt").write_text("\n")
    assert ranks.run("rerank", QUERY, tmp_path / "none.txt") == (0, "", "ranked 0 texts, 0 tokens\n")
