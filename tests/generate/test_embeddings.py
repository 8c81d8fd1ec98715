"""Vectors of texts: against the reference and transformers, alone and in company, beside replies, in little memory."""

import json

import embedders
import engines
import families
import numpy as np
import pytest
from fake_model import BOS, VOCAB_SIZE, Continuation, fake_model
from safetensors.numpy import save_file

import tinychat
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CacheFullError, ContextError, ConversionError, FieldError, ModelFolderError, SettingError
from tinychat.generate.driver import Driver
from tinychat.generate.embeddings import VectorForm, embed_ids, shortest_floats
from tinychat.models.dense import DenseLayer

MEAN = VectorForm("mean")
TEXTS = ["a", "Which of them flew first?", "It is a long text. " * 20, "b"]


def as_bytes(text):
    """Return the vector that the fake model gives a text: how often it has each token."""
    counts = np.bincount([BOS, *text.encode()], minlength=VOCAB_SIZE)
    return counts / np.linalg.norm(counts)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """Return a loaded embedding model in float32, and its weights."""
    folder = tmp_path_factory.mktemp("embedder")
    weights = embedders.write_embedder(folder / "checkpoint", architecture="Qwen3Model")
    tinychat.convert(folder / "checkpoint", folder / "model", quant="f32")
    with tinychat.load(folder / "model", context=families.CONTEXT_SIZE * 2) as model:
        yield model, weights


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_equal_the_reference(embedder, pooling):
    model, weights = embedder
    vectors = model.embed(TEXTS, pooling=pooling)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), 96), np.float32)
    for text, vector in zip(TEXTS, vectors):
        expected = embedders.expected_vector(weights, model.embedding.text_ids(text), pooling)
        np.testing.assert_allclose(vector, expected, atol=1e-4 * np.std(expected))


def test_the_files_say_how_texts_become_vectors(embedder):
    model, _ = embedder
    assert (model.embedder.pooling, model.writes) == ("last", False)
    ids = model.embedding.text_ids("What?", "query")
    assert ids == [*model.encode(embedders.QUERY + "What?"), embedders.END]
    assert model.embed(["What?"], prompt="query").tobytes() == model.embed([ids], pooling="last").tobytes()
    assert model.embed(["What?"]).tobytes() == model.embed(["What?"], prompt="document").tobytes()
    with pytest.raises(FieldError, match="prompt 'answer' must be one of query, document"):
        model.embed(["What?"], prompt="answer")


def test_a_text_has_the_same_bytes_in_any_company(embedder):
    model, _ = embedder
    texts = [*TEXTS * 3, *("short" for _ in range(60))]
    together = model.embed(texts, pooling="mean")
    for text, vector in zip(TEXTS, together):
        assert model.embed([text], pooling="mean")[0].tobytes() == vector.tobytes()
    assert together[: len(TEXTS)].tobytes() == together[len(TEXTS) : 2 * len(TEXTS)].tobytes()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pooling", ["mean_tokens", "lasttoken"])
def test_linear_layers_behind_the_pooling(tmp_path, rng, pooling, bias):
    checkpoint = tmp_path / "checkpoint"
    weights = embedders.write_embedder(checkpoint, pooling=pooling, modules=embedders.WITH_DENSE)
    layers = embedders.write_dense(checkpoint, rng, [(80, 96), (40, 80)], bias)
    model = tinychat.load(tinychat.convert(checkpoint, tmp_path / "model", quant="f32"), context=512)
    vectors = model.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), 40) and model.embedding.size == 40
    for text, vector in zip(TEXTS, vectors):
        found = embedders.pooled(weights, model.embedding.text_ids(text), model.embedder.pooling)
        for matrix, shift in layers:
            found = matrix.astype(np.float64) @ found + shift
        np.testing.assert_allclose(vector, found / np.linalg.norm(found), atol=1e-4 * np.std(found))
    with pytest.raises(FieldError, match="dimensions must be 1 to 40, not 41"):
        model.embed(TEXTS, dimensions=41)


def test_a_bounded_layer_behind_the_pooling(tmp_path, rng):
    checkpoint = tmp_path / "checkpoint"
    weights = embedders.write_embedder(checkpoint, modules=("Transformer", "Pooling", "Dense"))
    ((matrix, shift),) = embedders.write_dense(checkpoint, rng, [(80, 96)], bias=True, activation="activation.Tanh")
    model = tinychat.load(tinychat.convert(checkpoint, tmp_path / "model", quant="f32"), context=512)
    for text, vector in zip(TEXTS, model.embed(TEXTS)):
        pooled = embedders.pooled(weights, model.embedding.text_ids(text), "last")
        found = np.tanh(matrix.astype(np.float64) @ pooled + shift)
        np.testing.assert_allclose(vector, found / np.linalg.norm(found), atol=1e-5)


def test_numbers_beyond_float32_are_refused(tmp_path, rng):
    checkpoint = tmp_path / "checkpoint"
    embedders.write_embedder(checkpoint, modules=embedders.WITH_DENSE)
    ((matrix, _), _) = embedders.write_dense(checkpoint, rng, [(80, 96), (40, 80)])
    file = checkpoint / "2_Dense/model.safetensors"
    save_file({"linear.weight": np.full_like(matrix, 3e38)}, file)
    model = tinychat.load(tinychat.convert(checkpoint, tmp_path / "model", quant="f32"), context=512)
    with pytest.raises(ModelFolderError, match="hidden states are not finite"):
        model.embed(TEXTS)
    save_file({"linear.weight": np.full_like(matrix, np.nan)}, file)
    with pytest.raises(ConversionError, match=r"2_Dense/model.safetensors: linear.weight"):
        tinychat.convert(checkpoint, tmp_path / "other", quant="f32")
    assert not (tmp_path / "other").exists()


def test_fewer_numbers_of_a_vector(embedder):
    model, _ = embedder
    whole, few = model.embed(TEXTS), model.embed(TEXTS, dimensions=17)
    expected = whole[:, :17] / np.linalg.norm(whole[:, :17], axis=1, keepdims=True)
    np.testing.assert_allclose(few, expected, atol=1e-6)
    assert few.dtype == np.float32


def test_sums_of_a_linear_layer_are_those_of_a_loop(rng):
    weight, x = rng.standard_normal((96, 80)).astype(np.float32), rng.standard_normal(96).astype(np.float32)
    sums = np.zeros(80, np.float32)
    for factor, row in zip(x, weight):
        sums = sums + factor * row
    assert DenseLayer(weight, np.zeros(80, np.float32)).apply(x).tobytes() == sums.tobytes()


def test_it_writes_nothing(embedder):
    model, _ = embedder
    for write in (model.generate, model.logits, model.next_logits, model.stream):
        with pytest.raises(SettingError, match="model gives embeddings, not text: use `tinychat embed`"):
            write([1, 2])


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pooling", ["lasttoken", "mean_tokens"])
def test_vectors_equal_transformers(tmp_path, pooling):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.Qwen3Config(**embedders.VARIANT.config | {"tie_word_embeddings": True})
    torch.manual_seed(7)
    theirs = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
    for parameter in theirs.parameters():
        # As transformers draws them, a model hardly sees more than its last token.
        torch.nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, parameter.shape[-1] ** -0.5)
    checkpoint = tmp_path / "checkpoint"
    theirs.save_pretrained(checkpoint)
    embedders.write_ending_tokenizer(checkpoint)
    embedders.write_modules(checkpoint, pooling)
    assert json.loads((checkpoint / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    tinychat.convert(checkpoint, tmp_path / "model", quant="f32")
    model = tinychat.load(tmp_path / "model", context=512)
    for text, vector in zip(TEXTS, model.embed(TEXTS, prompt="query")):
        ids = tokenizer(embedders.QUERY + text)["input_ids"]
        assert model.embedding.text_ids(text, "query") == ids
        with torch.no_grad():
            states = theirs(torch.tensor([ids])).last_hidden_state[0]
        pooled = states[-1] if pooling == "lasttoken" else states.mean(dim=0)
        np.testing.assert_allclose(vector, torch.nn.functional.normalize(pooled, dim=0).numpy(), atol=1e-4)


def test_any_model_gives_vectors():
    model = fake_model(Continuation({}), context_size=512)
    vectors = model.embed(TEXTS)
    np.testing.assert_allclose(vectors, [as_bytes(text) for text in TEXTS], atol=1e-7)
    last = model.embed(TEXTS, pooling="last")
    assert last.argmax(axis=1).tolist() == [text.encode()[-1] for text in TEXTS]
    assert model.embed([[97, 98], "a"], pooling="last").argmax(axis=1).tolist() == [98, 97]
    assert model.embed([]).shape == (0, VOCAB_SIZE)


@pytest.mark.parametrize(
    ("texts", "fields", "error", "message"),
    [
        ("a", {}, FieldError, "texts must be a list"),
        (["a"], {"pooling": "max"}, FieldError, "pooling must be one of mean, last, cls, not 'max'"),
        (["a"], {"dimensions": 0}, FieldError, "dimensions must be 1 to 261, not 0"),
        (["a"], {"dimensions": 262}, FieldError, "dimensions must be 1 to 261, not 262"),
        (["a"], {"prompt": "query"}, FieldError, "prompt 'query' does nothing: this model has none"),
        (["a", []], {}, SettingError, "the prompt is empty"),
        ([[261]], {}, SettingError, "token id 261 is outside"),
        (["a" * 300], {}, ContextError, "the prompt has 301 tokens but the context holds 256"),
    ],
)
def test_what_cannot_be_embedded_is_refused(texts, fields, error, message):
    model = fake_model(Continuation({}))
    with pytest.raises(error, match=message):
        model.embed(texts, **fields)
    assert model.sequence.steps == []


def test_replies_are_written_meanwhile():
    model = fake_model(Continuation({"Once": " upon a time"}), context_size=512)
    stream = model.stream("Once")
    text = next(stream).text
    vectors = model.embed(TEXTS)
    np.testing.assert_allclose(vectors, [as_bytes(text) for text in TEXTS], atol=1e-7)
    assert text + "".join(delta.text for delta in stream) == " upon a time"


def test_hidden_states_that_are_not_finite():
    model = fake_model(Continuation({}))
    model.engine.hidden_states = lambda chunks: [np.full((len(chunk.ids), VOCAB_SIZE), np.nan) for chunk in chunks]
    with pytest.raises(ModelFolderError, match="not finite: convert it again"):
        model.embed(["a"])


def test_memory_that_a_conversation_holds_is_freed(folders):
    folder = folders("qwen3", "f32")
    engine = engines.open_engine(folder, positions=256)
    driver = Driver(new_sequence(engine, 256))
    driver.recent.step([1] * 200)
    texts = [[2, 3], [4] * 150, [5] * 70, [6]]
    roomy = Driver(new_sequence(engines.open_engine(folder, threads=2), 256))
    expected = [vector.tobytes() for step in embed_ids(roomy, texts, MEAN) for vector in step]
    assert [vector.tobytes() for step in embed_ids(driver, texts, MEAN) for vector in step] == expected
    assert engine.pool.used == 0
    other = new_sequence(engine, 256)
    other.step([7] * 250)
    with pytest.raises(CacheFullError):
        list(embed_ids(driver, texts, MEAN))
    other.evict()
    assert engine.pool.used == 0


def test_work_that_is_stopped_leaves_nothing(folders):
    driver = Driver(new_sequence(engines.open_engine(folders("qwen3", "f32")), 512))
    steps = embed_ids(driver, [[1] * 400, [2]], MEAN)
    assert next(steps) == []
    assert driver.engine.pool.used > 0
    steps.close()
    assert driver.engine.pool.used == 0


def test_numbers_in_json_are_short_and_exact(rng):
    vector = rng.standard_normal(50).astype(np.float32)
    numbers = json.loads(json.dumps(shortest_floats(vector)))
    assert np.array(numbers, np.float32).tobytes() == vector.tobytes()
    assert max(len(repr(number)) for number in numbers) < 15
