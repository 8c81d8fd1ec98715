"""``/v1/rerank``: documents in the order of their scores, in the forms of several servers; what is refused."""

import numpy as np
import pytest
import rankers
from local_server import serving

import tinychat

QUERY, DOCUMENTS = rankers.QUERY, rankers.DOCUMENTS


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    rankers.write_ranker(rankers.BY_NAME[request.param], folder / "checkpoint")
    return tinychat.load(tinychat.convert(folder / "checkpoint", folder / "ranker", quant="f32"), context=256)


@pytest.fixture(scope="module")
def server(model):
    with serving(model, name="ranker") as found:
        yield found


def in_order(scores):
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def test_documents_in_the_order_of_their_scores(server, model):
    scores = model.rank(QUERY, DOCUMENTS)
    tokens = sum(len(pair.ids) for pair in model.ranking.pairs(QUERY, DOCUMENTS))
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS, "user": "me"}
    for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"):
        status, answer = server.post(path, body)
        assert (status, answer["object"], answer["model"]) == (200, "list", "ranker")
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert [one["index"] for one in answer["results"]] == in_order(scores)
        for one in answer["results"]:
            assert np.float32(one["relevance_score"]) == scores[one["index"]] and "document" not in one
    assert server.raw("POST", "/v1/rerank", '{"query": "q", "documents": ["a"]}') == server.raw(
        "POST", "/v1/rerank", '{"query": "q", "documents": [{"text": "a"}]}'
    )


def test_the_best_with_their_texts(server, model):
    best = in_order(model.rank(QUERY, DOCUMENTS))[:2]
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 2, "return_documents": True}
    results = server.post("/v1/rerank", body)[1]["results"]
    assert [(one["index"], one["document"]) for one in results] == [(i, {"text": DOCUMENTS[i]}) for i in best]


def test_the_form_of_text_embeddings_inference(server, model):
    scores = model.rank(QUERY, DOCUMENTS)
    status, answer = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    assert (status, [one["index"] for one in answer]) == (200, in_order(scores))
    assert all(one["text"] == DOCUMENTS[one["index"]] for one in answer)
    _, raw = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True, "truncate": False})
    np.testing.assert_allclose(
        [1 / (1 + np.exp(-one["score"])) for one in raw], [one["score"] for one in answer], atol=1e-6
    )


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"documents": ["a"]}, "query", "must be a text"),
        ({"query": 1, "documents": ["a"]}, "query", "must be a text"),
        ({"query": "q"}, "documents", "must be a list of 1 to 1000 texts"),
        ({"query": "q", "documents": []}, "documents", "must be a list of 1 to 1000 texts"),
        ({"query": "q", "documents": ["a", {"title": "b"}]}, "documents", "must be a list"),
        ({"query": "q", "texts": "a"}, "texts", "must be a list"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n", "must be a whole number"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["a"]}, "rank_fields", "is not supported"),
    ],
)
def test_what_is_refused(server, body, param, message):
    status, answer = server.post("/v1/rerank", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


def test_a_document_that_is_too_long(server):
    status, answer = server.post("/v1/rerank", {"query": "q", "documents": ["a", "a" * 400]})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_a_document_that_is_too_long_is_cut_if_asked_for(server, model):
    """It keeps as many tokens as fit, and counts as the text that they are."""
    long = "a b " * 200
    body = {"query": "q", "documents": ["a b", long], "truncate": True}
    status, answer = server.post("/v1/rerank", body)
    (short, cut) = model.ranking.pairs("q", ["a b", long], cuts=True)
    assert model.context_size - 2 <= len(cut.ids) <= model.context_size
    assert (status, answer["usage"]["total_tokens"]) == (200, len(short.ids) + len(cut.ids))
    (whole,) = model.ranking.pairs("q", ["a b " * 20])
    (beginning,) = model.ranking.pairs("q", ["a b " * 20], cuts=True)
    assert beginning == whole
    status, answer = server.post("/v1/rerank", {**body, "query": "q " * 400})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_instructions(server, model):
    body = {"query": QUERY, "documents": DOCUMENTS, "instruction": "Judge."}
    status, answer = server.post("/v1/rerank", body)
    if model.ranker.reads_pairs:
        assert (status, answer["error"]["param"]) == (400, "instruction")
    else:
        scores = model.rank(QUERY, DOCUMENTS, "Judge.")
        assert [one["index"] for one in answer["results"]] == in_order(scores)


def test_it_writes_no_text(server):
    status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    assert (status, "ranks documents" in answer["error"]["message"]) == (400, True)
