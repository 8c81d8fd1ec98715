"""Models that rank: their scores against the reference and transformers, alone and in company; what is refused."""

import json

import numpy as np
import pytest
import rankers

import tinychat
from tinychat.bench.doctor import Findings, examine_model
from tinychat.errors import (
    CheckpointError,
    ContextError,
    FieldError,
    ModelFolderError,
    SettingError,
    TextError,
    UnsupportedModelError,
)
from tinychat.generate.ranking import ranked
from tinychat.models.ranker import read_ranker
from tinychat.models.score_head import relevance
from tinychat.store.names import ModelReference

of_each_kind = pytest.mark.parametrize("variant", rankers.RANKERS, ids=lambda variant: variant.name)


def load(variant, folder, quant="f32", **options):
    weights = rankers.write_ranker(variant, folder / "checkpoint")
    model = tinychat.convert(folder / "checkpoint", folder / "model", quant=quant)
    return tinychat.load(model, context=256, **options), weights


def scores_of(model, pairs):
    return np.array([score for ended in model.ranking.score_ids(pairs) for score in ended]).reshape(-1)


@of_each_kind
def test_scores_equal_the_reference(variant, tmp_path):
    model, weights = load(variant, tmp_path, kv="f32")
    pairs = model.ranking.pairs(rankers.QUERY, rankers.DOCUMENTS)
    expected = [rankers.expected_score(variant, weights, *pair) for pair in pairs]
    np.testing.assert_allclose(scores_of(model, pairs), expected, atol=2e-3)
    ranked = model.rank(rankers.QUERY, rankers.DOCUMENTS)
    assert (ranked.shape, ranked.dtype) == ((4,), np.float32)
    np.testing.assert_allclose(ranked, 1 / (1 + np.exp(-np.array(expected))), atol=1e-3)
    for document, score in zip(rankers.DOCUMENTS, ranked):
        assert model.rank(rankers.QUERY, [document]).tobytes() == score.tobytes()


@of_each_kind
def test_query_and_document_as_one_text(variant, tmp_path):
    model, _ = load(variant, tmp_path)
    ((ids, second),) = model.ranking.pairs("a <s> b", ["c </s>"])
    a, b = (model.encode(text, add_bos=False) for text in ("a <s> b", "c </s>"))
    if variant.name == "qwen3":
        text = model.tokenizer.decode(ids, skip_special=False)
        assert (text, second) == ("Query: a <s> bDocument: c </s></s>", len(ids))
        assert ids[-1] == rankers.END
        assert [*ids].count(rankers.END) == 1
    else:
        assert ids == [rankers.END, *a, rankers.END, *b, rankers.END]
        assert second == len(a) + 2


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@of_each_kind
def test_scores_equal_transformers(variant, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, _ = load(variant, tmp_path, kv="f32")
    # It asks for a padding token of decoders alone, and puts RoBERTa's first position behind its own.
    padding = {"pad_token_id": 0} if variant.name == "qwen3" else {}
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "checkpoint", dtype=torch.float32, output_loading_info=True, **padding
    )
    assert not report["unexpected_keys"] and not report["missing_keys"], report
    pairs = model.ranking.pairs(rankers.QUERY, rankers.DOCUMENTS)
    for (ids, second), score in zip(pairs, scores_of(model, pairs)):
        kinds = {"token_type_ids": torch.tensor([[int(i >= second) for i in range(len(ids))]])}
        kinds = kinds if variant.name in ("bert", "electra") else {}
        with torch.no_grad():
            expected = theirs.eval()(torch.tensor([ids]), **kinds).logits
        assert expected.shape == (1, 1)
        assert abs(score - expected.item()) < 2e-3


def write_logit_score(folder, other=7, **changes):
    """Write a decoder that ranks by two of its tokens; return its weights and the number of the first one."""
    variant = rankers.Variant("qwen3", rankers.DECODER | {"tie_word_embeddings": False} | changes)
    weights = rankers.write_ranker(variant, folder)
    config = {key: value for key, value in variant.config.items() if key not in rankers.CLASSIFIER}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    steps = [("", "modules.transformer.Transformer"), ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore")]
    listed = [{"idx": i, "path": path, "type": f"sentence_transformers.{kind}"} for i, (path, kind) in enumerate(steps)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore/config.json").write_text(json.dumps({"true_token_id": 5, "false_token_id": other}))
    return variant, weights


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("other", [7, None])
def test_scores_of_two_tokens(tmp_path, tied, other):
    variant, weights = write_logit_score(tmp_path / "checkpoint", other, tie_word_embeddings=tied)
    matrix = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
    weights["score.weight"] = matrix[5:6] - (0 if other is None else matrix[other : other + 1])
    model = tinychat.load(
        tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32"), context=256, kv="f32"
    )
    pairs = model.ranking.pairs(rankers.QUERY, rankers.DOCUMENTS, "Judge.")
    assert model.decode(pairs[0].ids).startswith("Judge.\nQuery: Who")
    expected = [rankers.expected_score(variant, weights, *pair) for pair in pairs]
    np.testing.assert_allclose(scores_of(model, pairs), expected, atol=2e-3 * max(1, np.std(expected)))
    assert not model.writes


def test_few_bits_keep_the_order(tmp_path):
    documents = [f"{word} {number}" for word in ("cat", "sky", "first") for number in range(8)]
    models = [load(rankers.BY_NAME["bert"], tmp_path / quant, quant)[0] for quant in ("f32", "int8")]
    assert np.corrcoef(*(model.rank("q", documents) for model in models))[0, 1] > 0.98


def test_what_models_that_rank_refuse(tmp_path):
    model, _ = load(rankers.BY_NAME["bert"], tmp_path)
    for write in (model.generate, model.logits, model.stream):
        with pytest.raises(SettingError, match="model ranks documents, and writes no text: use `tinychat rerank`"):
            write([1, 2])
    with pytest.raises(FieldError, match="instruction does nothing: model takes none"):
        model.rank("q", ["d"], "Judge.")
    with pytest.raises(ContextError):
        model.rank("q", ["d " * 300])
    with pytest.raises(FieldError, match="documents must be a list"):
        model.rank("q", "d")
    assert model.rank("q", []).shape == (0,)


def test_the_order_is_that_of_the_scores():
    found = ranked([np.array([score], np.float32) for score in (47.0, 46.5, 47.5, -40.0, 47.5)])
    assert found.order == [2, 4, 0, 1, 3]
    assert found.relevance[[0, 1, 2, 4]].tolist() == [1.0] * 4


def test_a_query_that_is_too_long_is_refused_before_any_document(tmp_path):
    model, _ = load(rankers.BY_NAME["bert"], tmp_path)
    encoded = []
    model.tokenizer.encode = lambda text, add_bos=True: encoded.append(text) or [5] * len(text)
    with pytest.raises(ContextError):
        model.rank("q" * 300, ["d"] * 1000)
    assert len(encoded) == 1


def test_templates_without_a_place_for_instructions(tmp_path):
    rankers.write_ranker(rankers.BY_NAME["qwen3"], tmp_path / "checkpoint")
    template = tmp_path / "checkpoint/chat_template.jinja"
    template.write_text(rankers.TEMPLATE.replace("system", "other"))
    model = tinychat.load(tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32"), context=256)
    with pytest.raises(FieldError, match="instruction does nothing"):
        model.rank("q", ["d"], "Judge.")
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(TextError, match="its chat template has no roles query and document"):
        tinychat.convert(tmp_path / "checkpoint", tmp_path / "other", quant="f32")


def test_a_damaged_head(tmp_path):
    model, _ = load(rankers.BY_NAME["bert"], tmp_path)
    file = model.path / "ranker.safetensors"
    for content in (b"", file.read_bytes()[:-4] + np.array([np.nan], np.float32).tobytes()):
        file.write_bytes(content)
        with pytest.raises(ModelFolderError, match=r"ranker\.safetensors"):
            tinychat.load(model.path, context=64).rank("q", ["d"])
        findings = Findings()
        examine_model(findings, ModelReference("folder", str(model.path), model.path))
        assert any("ranker.safetensors" in problem for problem in findings.problems)


def test_other_models_do_not_rank(tmp_path):
    model = tinychat.load("demo")
    with pytest.raises(SettingError, match="demo does not rank: choose a model that does"):
        model.rank("q", ["d"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "a classifier of 2 labels is not supported"),
        ({"id2label": None}, "a classifier of 2 labels is not supported"),
        ({"id2label": None, "num_labels": 3}, "a classifier of 3 labels"),
        (
            {"architectures": ["EuroBertForSequenceClassification"]},
            "EuroBertForSequenceClassification is not",
        ),
        (
            {"architectures": ["ModernBertForSequenceClassification"], "classifier_activation": "relu"},
            "classifier_pooling 'cls' with 'relu' is not supported",
        ),
    ],
)
def test_heads_that_are_not_supported(tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(rankers.BY_NAME["bert"].config | changes))
    with pytest.raises(UnsupportedModelError, match=message):
        read_ranker(tmp_path)


def test_a_head_that_is_not_there(tmp_path):
    from safetensors.numpy import load_file, save_file

    checkpoint = tmp_path / "checkpoint"
    rankers.write_ranker(rankers.BY_NAME["bert"], checkpoint)
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    for name, changed in (("classifier.weight", None), ("bert.pooler.dense.weight", np.zeros((3, 3), np.float32))):
        others = {key: value for key, value in weights.items() if key != name}
        save_file(others if changed is None else others | {name: changed}, file)
        with pytest.raises(CheckpointError, match=name):
            tinychat.convert(checkpoint, tmp_path / "model")
        assert not (tmp_path / "model").exists()


def test_relevance_is_the_logistic_function():
    scores = np.array([-800, -3, 0, 2.5, 800], np.float32)
    np.testing.assert_allclose(relevance(scores), [0, 0.04742587, 0.5, 0.9241418, 1], rtol=1e-6)
