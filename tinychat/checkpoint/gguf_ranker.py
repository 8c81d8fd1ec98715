"""The head of a model that ranks in a GGUF file, and how it writes a query and a document.

As llama.cpp has them (github.com/ggml-org/llama.cpp, src/llama-graph.cpp, convert_hf_to_gguf.py), but that it gives
all tokens the first kind of text.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf_file import GgufFile
from tinychat.errors import CheckpointError
from tinychat.models.architectures import unsupported
from tinychat.models.family import CLASSIFIER
from tinychat.models.ranker import Ranker, head_of_stem
from tinychat.models.score_head import SCORE_WEIGHTS, head_file, head_shapes

# llama.cpp's number of the pooling (include/llama.h, llama_pooling_type).
_RANK = 4
_DENSE, _NORM, _SCORE = "cls", "cls.norm", "cls.output"
_TEMPLATE = "tokenizer.chat_template.rerank"
_PLACES = {"{query}": "query", "{document}": "document"}


def is_ranker(metadata: Mapping[str, Any]) -> bool:
    """Return whether a file holds a model that ranks."""
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    return type(kind) is int and kind == _RANK


def ranker_config(architecture: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the keys of ``config.json`` that make it one of a model that ranks."""
    kinds = shapes.get("token_types.weight", (1,))[0]
    found = {"architectures": [f"{_stem(architecture)}{CLASSIFIER}"], "num_labels": 1, "type_vocab_size": kinds}
    # llama.cpp takes the mean of ModernBERT alone.
    return found | {"classifier_pooling": "mean"}


def _stem(architecture: str) -> str:
    return architecture.removesuffix("Model").removesuffix("ForCausalLM")


def ranker_files(files: Sequence[GgufFile], architecture: str, hidden_size: int) -> dict[str, bytes]:
    """Return the file of the head, and the template of a decoder, as a checkpoint folder has them."""
    metadata, source = files[0].metadata, str(files[0].path)
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    ranker = head_of_stem(_stem(architecture), source)
    if f"{_SCORE}.weight" not in tensors:
        raise CheckpointError(f"{source} has no tensor {_SCORE}.weight: it was made by a program that leaves it out")
    score = tensors[f"{_SCORE}.weight"]
    if math.prod(score.shape) % hidden_size:
        raise CheckpointError(f"{source}: {_SCORE}.weight has shape {score.shape}: it does not fit the model")
    found = {"score.weight": _first_less_second(_numbers(score).reshape(-1, hidden_size), source)}
    found["score.bias"] = _first_less_second(_bias(tensors, _SCORE, score.shape[0] if score.shape[1:] else 1), source)
    for name, theirs in (("dense", _DENSE if ranker.dense else ""), ("norm", _NORM if ranker.norm else "")):
        if theirs:
            if f"{theirs}.weight" not in tensors:
                raise unsupported(source, f"a model that ranks without {theirs}.weight")
            found[f"{name}.weight"] = _numbers(tensors[f"{theirs}.weight"])
            found[f"{name}.bias"] = _bias(tensors, theirs, hidden_size)
    contents = {SCORE_WEIGHTS: _file(ranker, hidden_size, found, source)}
    if not ranker.reads_pairs:
        contents["chat_template.jinja"] = _as_jinja(metadata.get(_TEMPLATE), source).encode()
    return contents


def _file(ranker: Ranker, hidden_size: int, tensors: Mapping[str, NDArray[np.float32]], source: str) -> bytes:
    for name, shape in head_shapes(ranker, hidden_size).items():
        if tensors[name].shape != shape:
            raise CheckpointError(f"{source}: {name} of the head has shape {tensors[name].shape}; expected {shape}")
    return head_file(ranker, hidden_size, tensors)


def _first_less_second(rows: NDArray[np.float32], source: str) -> NDArray[np.float32]:
    """Return the numbers of the first label, less those of the second where there is one: "yes" and "no"."""
    if len(rows) > 2:
        raise unsupported(source, f"a classifier of {len(rows)} labels")
    return rows[:1] - rows[1:] if len(rows) == 2 else rows


def _bias(tensors: Mapping[str, Any], name: str, size: int) -> NDArray[np.float32]:
    tensor = tensors.get(f"{name}.bias")
    return np.zeros(size, np.float32) if tensor is None else _numbers(tensor).reshape(-1)


def _numbers(tensor: Any) -> NDArray[np.float32]:
    tensor.check_readable()
    found: NDArray[np.float32] = tensor.read(0, tensor.shape[0]).astype(np.float32)
    return found


def _as_jinja(template: object, source: str) -> str:
    """Return a template with places for query and document as one of messages with these roles."""
    if not isinstance(template, str) or not all(place in template for place in _PLACES):
        raise unsupported(source, f"a model that ranks without a template of query and document ({_TEMPLATE})")
    parts = [template]
    for place in _PLACES:
        parts = [piece for part in parts for piece in _split(part, place)]
    return "".join(
        f"{{% for m in messages if m.role == '{_PLACES[part]}' %}}{{{{ m.content }}}}{{% endfor %}}"
        if part in _PLACES
        else f"{{{{ {json.dumps(part)} }}}}"
        for part in parts
        if part
    )


def _split(text: str, place: str) -> list[str]:
    """Return a text cut at a place, with the places."""
    if text in _PLACES:
        return [text]
    first, *others = text.split(place)
    return [first, *(part for other in others for part in (place, other))]
