"""GGUF files of models that rank: the head, the kinds of text, how decoders write a query and a document."""

import families
import gguf_files
import numpy as np
import pytest
import rankers

import tinychat
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.generate.ranking import PairIds

RANK = 4
END = 2  # the id of </s>
TEMPLATE = "<s>Judge {%this%}.\nQuery: {query}\nDocument: {document}</s>\n"


def load(variant, folder, rerank=None, **tensors):
    base = rankers.base_of(variant)
    file = gguf_files.write_variant(base, folder / "model.gguf", pooling=RANK, rerank=rerank, **tensors)
    with unpacked(file) as checkpoint:
        return tinychat.load(tinychat.convert(checkpoint, folder / "model", quant="f32"), context=256, kv="f32")


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert-mean", "qwen3"])
def test_scores_equal_the_reference(name, labels, tmp_path):
    variant = rankers.BY_NAME[name]
    tensors = rankers.head_tensors(variant, labels)
    model = load(variant, tmp_path, TEMPLATE, **tensors)
    if labels == 2:
        for part in ("cls.output", "cls.output.bias"):
            if part in tensors:
                tensors[part] = tensors[part][:1] - tensors[part][1:]
    dense, norm, score = rankers.HEADS[variant.config["model_type"]]
    weights = families.make_weights(rankers.base_of(variant))
    names = {"cls": f"{dense}.weight", "cls.bias": f"{dense}.bias", "cls.norm": f"{norm}.weight"}
    names |= {"cls.output": f"{score}.weight", "cls.output.bias": f"{score}.bias"}
    weights |= {names[part]: values for part, values in tensors.items()}
    ids = families.make_ids(variant)
    pairs = [PairIds(ids[:count], count // 2) for count in (2, 3, 17, 200)]
    found = [score for ended in model.ranking.score_ids(pairs) for score in ended]
    expected = [rankers.expected_score(variant, weights, *pair) for pair in pairs]
    np.testing.assert_allclose(np.reshape(found, -1), expected, atol=2e-3 * max(1, np.std(expected)))


def test_query_and_document_as_the_file_writes_them(tmp_path):
    variant = rankers.BY_NAME["qwen3"]
    model = load(variant, tmp_path, TEMPLATE, **rankers.head_tensors(variant))
    ((ids, _),) = model.ranking.pairs("a </s> {document}", ["{query} b"])
    text = model.tokenizer.decode(ids, skip_special=False)
    assert text == "<s>Judge {%this%}.\nQuery: a </s> {document}\nDocument: {query} b</s>\n"
    assert [ids.count(token) for token in (1, 2)] == [1, 1]
    assert 0 < model.rank("a", ["b"])[0] < 1


def test_tokens_stand_between_query_and_document(tmp_path):
    variant = rankers.BY_NAME["modernbert-mean"]
    model = load(variant, tmp_path, **rankers.head_tensors(variant))
    ((ids, _),) = model.ranking.pairs("a", ["b"])
    assert ids == [*model.encode("a", add_bos=False), END, *model.encode("b", add_bos=False), END]


@pytest.mark.parametrize(
    ("name", "lacking", "template", "message"),
    [
        ("bert", "cls.output", None, "has no tensor cls.output.weight"),
        ("bert", "cls", None, "a model that ranks without cls.weight is not supported"),
        ("qwen3", "", None, "without a template of query and document"),
        ("qwen3", "", "{query}", "without a template of query and document"),
    ],
)
def test_what_a_file_lacks(name, lacking, template, message, tmp_path):
    variant = rankers.BY_NAME[name]
    tensors = {part: values for part, values in rankers.head_tensors(variant).items() if part != lacking}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        load(variant, tmp_path, template, **tensors)


@pytest.mark.parametrize(("part", "shape"), [("cls", (3, 96)), ("cls.output", (3, 96)), ("cls.output", (7,))])
def test_a_head_that_does_not_fit(part, shape, tmp_path):
    variant = rankers.BY_NAME["bert"]
    tensors = rankers.head_tensors(variant) | {part: np.ones(shape, np.float32)}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=r"fit the model|has shape|of 3 labels"):
        load(variant, tmp_path, **tensors)
