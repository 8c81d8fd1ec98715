"""Adapters for single tasks among the tensors of a checkpoint: jina-embeddings-v3 as its makers publish it."""

import json
from pathlib import Path

import encoders
import families
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.folder import folder_of
from tinychat.errors import CheckpointError
from tinychat.models.architectures import parse_config

PLAIN = encoders.BY_NAME["jina-v3"]
RANK, TASKS = 4, encoders.TASKS


def write_checkpoint(folder, rng):
    """Write a checkpoint with adapters; return the weights that each task has, and those without any."""
    weights = families.make_weights(PLAIN)
    stored, of_tasks = {}, [dict(weights) for _ in TASKS]
    for name, values in weights.items():
        stem = name.removesuffix(".weight")
        if values.ndim != 2:
            stored[name] = values
            continue
        rows, columns = values.shape
        first, second = ((rows, RANK), (RANK, columns)) if "embeddings" in name else ((RANK, columns), (rows, RANK))
        pair = [rng.standard_normal((len(TASKS), *shape)).astype(np.float32) for shape in (first, second)]
        stem += ".parametrizations.weight."
        stored |= {f"{stem}original": values, f"{stem}0.lora_A": pair[0], f"{stem}0.lora_B": pair[1]}
        for task, own in enumerate(of_tasks):
            left, right = (pair[0], pair[1]) if "embeddings" in name else (pair[1], pair[0])
            own[name] = values + 3 / RANK * (left[task].astype(np.float64) @ right[task])
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(encoders.JINA_PUBLISHED))
    families.write_tokenizer(folder, PLAIN.config["vocab_size"])
    return of_tasks, weights


def assert_weights(folder, expected):
    tensors = open_checkpoint(folder).tensors
    for name, values in expected.items():
        if "embeddings" not in name:
            np.testing.assert_allclose(tensors.read(name), values, rtol=1e-5, atol=1e-6)
    kinds, words = (expected[f"roberta.embeddings.{kind}_embeddings.weight"] for kind in ("token_type", "word"))
    name = "roberta.embeddings.word_embeddings^roberta.embeddings.token_type_embeddings.weight"
    np.testing.assert_allclose(tensors.read(name), words + kinds[:1], rtol=1e-5, atol=1e-6)


def test_the_adapter_of_a_task_is_merged(tmp_path, rng):
    of_tasks, weights = write_checkpoint(tmp_path / "checkpoint", rng)
    assert_weights(tmp_path / "checkpoint", weights)
    for task, expected in zip(TASKS, of_tasks):
        with folder_of(tmp_path / "checkpoint", Path(task)) as folder:
            assert_weights(folder, expected)
            assert json.loads((folder / "config.json").read_text())["lora_task"] == task


def test_the_configuration_is_that_of_transformers_form():
    assert parse_config(encoders.JINA_PUBLISHED, "") == parse_config(encoders.JINA, "")
    assert parse_config(encoders.JINA_PUBLISHED | {"lora_task": TASKS[0]}, "") == parse_config(encoders.JINA, "")


def test_what_is_no_task_is_refused(tmp_path, rng):
    write_checkpoint(tmp_path / "checkpoint", rng)
    with pytest.raises(CheckpointError, match="classification is not an adapter"):
        tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", adapter="classification")
    (tmp_path / "checkpoint/config.json").write_text(json.dumps(encoders.JINA_PUBLISHED | {"lora_task": "other"}))
    with pytest.raises(
        CheckpointError, match=r"lora_task is 'other'; expected one of retrieval\.query, retrieval\.pas"
    ):
        open_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("shape", [(RANK, 96), (2, RANK, 96), (3, RANK, 95)])
def test_damaged_matrices_are_refused(tmp_path, rng, shape):
    write_checkpoint(tmp_path / "checkpoint", rng)
    file = tmp_path / "checkpoint/model.safetensors"
    name = "roberta.encoder.layers.1.mlp.fc1.parametrizations.weight.0.lora_A"
    save_file(load_file(file) | {name: np.ones(shape, np.float32)}, file)
    with folder_of(tmp_path / "checkpoint", Path(TASKS[2])) as folder, pytest.raises(CheckpointError, match="fc1"):
        open_checkpoint(folder).tensors.expect("roberta.encoder.layers.1.mlp.fc1.weight", (172, 96))
