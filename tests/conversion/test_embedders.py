"""Conversion of embedding models: no output matrix, no texts of their own, and the files that say how they pool."""

import json

import embedders
import families
import gguf_files
import numpy as np
import pytest

import tinychat
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.conversion import pipeline
from tinychat.models.architectures import read_config
from tinychat.models.embedder import Embedder, read_embedder
from tinychat.models.folder import open_model_folder
from tinychat.text.loading import load_tokenizer


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """Return an embedding model's checkpoint; a conversion that loads a model fails."""
    monkeypatch.setattr(pipeline, "_load", lambda folder: pytest.fail("it predicts nothing"))
    embedders.write_embedder(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("quant", ["int4", "int8"])
def test_it_is_converted_without_texts_of_its_own(checkpoint, tmp_path, quant):
    folder = tinychat.convert(checkpoint, tmp_path / "model", quant=quant)
    opened = open_model_folder(folder)
    assert not opened.config.writes and not any(name.startswith("lm_head") for name in opened.tensors)
    assert read_embedder(folder) == Embedder("last", embedders.PROMPTS["prompts"])
    assert load_tokenizer(folder).suffix_ids == [embedders.END]
    description = json.loads((folder / "tinychat.json").read_text())
    assert "certificate" not in description and np.mean([*description["relative_rms_error"].values()]) < 0.1


def test_eight_bits_are_the_default_of_the_store(checkpoint):
    assert pipeline.default_recipe(checkpoint) == pipeline.Recipe("int8", check=False)
    (checkpoint / "modules.json").unlink()
    assert pipeline.default_recipe(checkpoint) == pipeline.Recipe()


def test_a_conversion_goes_on_only_with_the_same_pooling(checkpoint):
    before = pipeline.key_of(checkpoint)
    embedders.write_modules(checkpoint, "mean_tokens")
    assert pipeline.key_of(checkpoint) != before


@pytest.mark.parametrize(("pooling", "ours"), [(1, "mean"), (2, "cls"), (3, "last"), (0, None), (None, None)])
def test_a_gguf_file_names_its_pooling(tmp_path, pooling, ours):
    file = gguf_files.write_variant(families.BY_NAME["qwen3-tied"], tmp_path / "model.gguf", pooling=pooling)
    with unpacked(file) as folder:
        embedder = read_embedder(folder)
        assert embedder == (ours and Embedder(ours))
        assert read_config(folder / "config.json").writes == (ours is None)
        assert load_tokenizer(folder).suffix_ids == ([] if pooling is None else [2])
