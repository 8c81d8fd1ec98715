"""Adapters for single tasks that a checkpoint has among its tensors: those of jina-embeddings-v3 as its makers have it.

A weight that they change is called ``parametrizations.weight.original``, and beside it stand the matrices of all tasks,
stacked: ``lora_A`` and ``lora_B``, whose product is added. ``config.json`` lists the tasks; a conversion writes there
which one it merges. Without any, weights are the original ones (huggingface.co/jinaai, its
xlm-roberta-flash-implementation).
"""

import json
from pathlib import Path

import numpy as np

from tinychat.checkpoint.adapter import Floats, MergedTensor
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.errors import CheckpointError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.config_values import ConfigValues

_TASKS, _TASK = "lora_adaptations", "lora_task"
_WEIGHT, _ORIGINAL, _MATRICES = ".parametrizations.weight.", "original", ("0.lora_A", "0.lora_B")


def tasks_of(folder: Path) -> list[str]:
    """Return the names of the tasks that a checkpoint has adapters for."""
    path = folder / "config.json"
    found = read_json_object(path).get(_TASKS) if path.is_file() else None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def config_with_task(config: Path, task: str) -> bytes:
    """Return a ``config.json`` that names the task whose adapter is merged."""
    return json.dumps({**read_json_object(config), _TASK: task}, indent=2).encode()


def with_task(tensors: Tensors) -> Tensors:
    """Return a checkpoint's tensors with weights under their plain names, merged with the adapter that it names."""
    originals = [name for name in tensors.by_name if name.endswith(f"{_WEIGHT}{_ORIGINAL}")]
    if not originals:
        return tensors
    path = tensors.folder / "config.json"
    values, tasks = ConfigValues(read_json_object(path), str(path)), tasks_of(tensors.folder)
    task = values.optional_text(_TASK)
    if task is not None and task not in tasks:
        raise values.error(_TASK, f"one of {one_line(', '.join(tasks), 200)}")
    found = {name: tensor for name, tensor in tensors.by_name.items() if _WEIGHT not in name}
    for name in originals:
        stem, weight = name.removesuffix(_ORIGINAL), tensors[name]
        if task is not None:
            scale = values.number("lora_alpha", -1e6, 1e6) / values.integer("lora_rank", 1, 1 << 16)
            first, second = (_of_task(tensors, f"{stem}{matrix}", tasks.index(task)) for matrix in _MATRICES)
            # Of embeddings, the first has the rows.
            left, right = (first, second) if len(first) == weight.shape[0] else (second, first)
            weight = MergedTensor(weight, name, left, right, scale, None)
        found[f"{name.partition(_WEIGHT)[0]}.weight"] = weight
    return Tensors(tensors.folder, found)


def _of_task(tensors: Tensors, name: str, number: int) -> Floats:
    """Return the matrix of one task, float32."""
    tensor: Tensor = tensors[name]
    if len(tensor.shape) != 3 or number >= tensor.shape[0]:
        raise CheckpointError(f"{tensors.folder}: {one_line(name, 80)} does not hold matrices of all tasks")
    found: Floats = tensor.read(number, number + 1)[0].astype(np.float32)
    return found
