"""GGUF files of models that give embeddings alone: their tokens, their tensors, and what follows the pooling."""

import base64

import embedders
import encoders
import families
import gguf_files
import numpy as np
import pytest
import reference

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.checkpoint.gguf_vocabulary import Vocabulary
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, TextError
from tinychat.models.architectures import parse_config
from tinychat.models.embedder import read_embedder
from tinychat.text.hard_texts import HARD_TEXTS
from tinychat.text.loading import load_tokenizer

TEXTS = [*HARD_TEXTS, "Ünïcödé NAMES, and [SEP] </s> in a text", "unseen qqqqq words\tzz", ""]


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokens_of_words_are_those_of_berts_own_file(tmp_path, lowercase):
    trained = gguf_files.train_word_pieces(TEXTS, lowercase)
    with unpacked(gguf_files.write_word_pieces(tmp_path / "model.gguf", trained)) as folder:
        tokenizer = load_tokenizer(folder)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ([2], [3])
    for text in TEXTS:
        # A control token's spelling is text.
        if "[SEP]" not in text:
            assert [*tokenizer.encode(text), *tokenizer.suffix_ids] == trained.encode(text).ids, text
    assert not {2, 3} & {*tokenizer.encode("a [SEP] b [CLS]", add_bos=False)}


def test_tokens_with_scores_are_those_of_their_own_file(tmp_path):
    trained = gguf_files.train_unigram(TEXTS)
    with unpacked(gguf_files.write_unigram(tmp_path / "model.gguf", trained)) as folder:
        tokenizer = load_tokenizer(folder)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ([0], [2])
    for text in TEXTS:
        if "<" not in text:
            assert [*tokenizer.encode(text), *tokenizer.suffix_ids] == trained.encode(text).ids, text


@pytest.mark.parametrize(
    "values", [{"scores": [1.0]}, {"precompiled_charsmap": [1.5]}, {"precompiled_charsmap": [7] * 9}]
)
def test_a_damaged_vocabulary_is_refused(tmp_path, values):
    file = gguf_files.write_unigram(tmp_path / "model.gguf", gguf_files.train_unigram(TEXTS), **values)
    with pytest.raises(TextError) as raised, unpacked(file):
        pass
    assert "\n" not in str(raised.value)


def test_a_character_map_may_be_in_letters_of_base64():
    charsmap = bytes(range(9))
    known = {"tokenizer.ggml.tokens": ["a"]}
    for value in (np.frombuffer(charsmap, np.uint8), [*base64.b64encode(charsmap).decode()]):
        vocabulary = Vocabulary(known | {"tokenizer.ggml.precompiled_charsmap": value}, "file")
        assert vocabulary.raw_bytes("precompiled_charsmap") == charsmap


@pytest.mark.parametrize("variant", encoders.OF_LLAMA_CPP, ids=lambda variant: variant.name)
def test_hidden_states_equal_the_reference(variant, tmp_path):
    file = gguf_files.write_variant(variant, tmp_path / "model.gguf", pooling=2)
    with unpacked(file) as folder:
        model = tinychat.load(tinychat.convert(folder, tmp_path / "model", quant="f32"), context=256, kv="f32")
    assert (model.embedder.pooling, model.writes) == ("cls", False)
    ids = families.make_ids(variant)
    (states,) = model.engine.hidden_states([new_sequence(model.engine, 256).chunk(ids, len(ids), 0)])
    # llama.cpp's converter leaves out the vector that Nomic BERT adds to what experts give.
    weights = {
        name: values * (not name.endswith(".experts.bias.weight"))
        for name, values in families.make_weights(variant).items()
    }
    expected = reference.decoder_states(parse_config(variant.config, ""), weights, ids)
    assert np.max(np.abs(states - expected)) < 1e-3 * np.std(expected)
    (vector,) = model.embed([ids])
    first = expected[0]
    if model.engine.projection is not None:
        first = weights["model.embedding_projection.weight"].astype(np.float64) @ first
    np.testing.assert_allclose(vector, first / np.linalg.norm(first), atol=1e-4)


def test_linear_layers_behind_the_pooling(tmp_path, rng):
    layers = {"dense_2": rng.standard_normal((80, 96)), "dense_3": rng.standard_normal((40, 80))}
    layers = {name: values.astype(np.float32) for name, values in layers.items()}
    variant = encoders.BY_NAME["embedding-gemma"]
    with unpacked(gguf_files.write_variant(variant, tmp_path / "model.gguf", pooling=1, **layers)) as folder:
        model = tinychat.load(tinychat.convert(folder, tmp_path / "model", quant="f32"), context=256, kv="f32")
    ids = families.make_ids(variant)[:17]
    found = reference.decoder_states(parse_config(variant.config, ""), families.make_weights(variant), ids).mean(axis=0)
    for values in layers.values():
        found = values.astype(np.float64) @ found
    np.testing.assert_allclose(model.embed([ids])[0], found / np.linalg.norm(found), atol=1e-4)


def test_gates_apart_of_what_they_let_through(tmp_path):
    variant = encoders.BY_NAME["jina-v2"]
    whole = gguf_files.write_variant(variant, tmp_path / "whole.gguf")
    weights = families.make_weights(variant)
    apart = {name: values for name, values in weights.items() if "gated_layers" not in name}
    for name in weights.keys() - apart.keys():
        block = f"blk.{name.split('.')[3]}."
        apart |= dict(zip((f"{block}ffn_gate.weight", f"{block}ffn_up.weight"), np.split(weights[name], 2)))
    older = gguf_files.write_variant(variant, tmp_path / "older.gguf", weights=apart)
    found = []
    for file in (whole, older):
        with unpacked(file) as folder:
            tensors = open_checkpoint(folder).tensors
            found.append([tensors.read(f"bert.encoder.layer.{i}.mlp.gated_layers.weight") for i in range(3)])
    np.testing.assert_array_equal(*found)


def test_linear_layers_that_are_no_matrices(tmp_path):
    layers = {"dense_2": np.ones(8, np.float32)}
    file = gguf_files.write_variant(encoders.BY_NAME["bert"], tmp_path / "model.gguf", pooling=1, **layers)
    with pytest.raises(CheckpointError, match="are no matrices"), unpacked(file):
        pass


def test_without_a_pooling_the_mean_is_taken(tmp_path):
    with unpacked(gguf_files.write_variant(encoders.BY_NAME["bert"], tmp_path / "model.gguf")) as folder:
        assert read_embedder(folder) is None
        assert tinychat.load(tinychat.convert(folder, tmp_path / "model"), context=64).embedder.pooling == "mean"
    assert embedders.END == 2
