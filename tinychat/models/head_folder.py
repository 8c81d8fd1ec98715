"""The file of a draft head in a model folder; see `models.draft_head`."""

from __future__ import annotations

from dataclasses import replace

from tinychat.models.architectures import family_of, linears
from tinychat.models.config import ModelConfig
from tinychat.models.draft_head import head_config
from tinychat.models.folder import ModelFolder, map_weights
from tinychat.models.layout import FREQUENT, Quantization, TensorSpec, tensor_specs
from tinychat.models.passthrough import NATIVE

HEAD = "draft-head.safetensors"
# The linears that are the larger model's, as they are stored there.
SHARED = ("embed_tokens", FREQUENT, "lm_head")


def head_layout(config: ModelConfig, quantization: Quantization) -> tuple[ModelConfig, Quantization] | None:
    """Return configuration and quantization of a model's draft head; None where it cannot have one.

    Codes that pass through are of checkpoints that leave the head out, or have it in a form of its own.
    """
    if family_of(config.architecture).draft_head is None or quantization.dtype == NATIVE:
        return None
    config = head_config(config)
    if quantization.dtype == "int4":
        own = [linear.name for linear in linears(config) if linear.name not in SHARED]
        shared = [name for name in quantization.int8 if name in SHARED]
        quantization = replace(quantization, int8=(*own, *shared))
    return config, quantization


def head_specs(config: ModelConfig, quantization: Quantization) -> dict[str, TensorSpec]:
    """Return name, dtype and shape of the tensors in a head's file: those that are not the larger model's."""
    specs = tensor_specs(config, quantization)
    return {name: spec for name, spec in specs.items() if not _is_shared(name)}


def open_head(folder: ModelFolder) -> ModelFolder | None:
    """Open the draft head of a model folder as a model of its own; None without one."""
    layout = head_layout(folder.config, folder.quantization)
    if layout is None or not (folder.path / HEAD).is_file():
        return None
    shared = {name: values for name, values in folder.tensors.items() if _is_shared(name)}
    return ModelFolder(folder.path, *layout, map_weights(folder.path / HEAD, head_specs(*layout)) | shared)


def _is_shared(tensor: str) -> bool:
    return tensor.partition(".")[0] in SHARED
