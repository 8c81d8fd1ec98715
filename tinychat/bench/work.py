"""The costs of one token: the denominators of rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinychat.engine.states import state_bytes
from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig
from tinychat.models.layout import FREQUENT, Quantization, TensorSpec, looked_up_bytes, tensor_specs
from tinychat.models.tensors import Linear


@dataclass(frozen=True)
class Work:
    """Costs of one token."""

    # Read by decoding: without the embeddings, of experts the chosen ones, of a layer as often as it runs.
    weight_bytes: int
    cache_bytes: int  # read by decoding for each token before
    state_bytes: int  # of recurrent layers, read and written by decoding
    multiply_adds: int  # of the linears inside the layers, which prefill runs for every token; without attention
    file_bytes: int  # of all weights


def work_of(config: ModelConfig, quantization: Quantization, cache_bytes: int) -> Work:
    """Return the costs of one token of a model."""
    specs = tensor_specs(config, quantization)
    total = sum(spec.bytes for spec in specs.values())
    embedding = sum(spec.bytes for name, spec in specs.items() if name.startswith(("embed_tokens.", FREQUENT)))
    inside = [linear for linear in linears(config) if linear.layers is not None or linear.name == "inputs_proj"]
    stacked = tuple(f"{linear.name}." for linear in inside if linear.layers is not None)
    repeated = sum(spec.bytes for name, spec in specs.items() if name.startswith(stacked)) * (config.runs_per_layer - 1)
    return Work(
        weight_bytes=total
        + round(repeated)
        - round(_bytes_not_chosen(config, specs) * config.runs_per_layer)
        - looked_up_bytes(specs)
        - (0 if config.tie_word_embeddings else embedding),
        cache_bytes=cache_bytes,
        state_bytes=2 * state_bytes(config),
        multiply_adds=round(sum(_passed(linear, config) for linear in inside) * config.runs_per_layer),
        file_bytes=total,
    )


def _passed(linear: Linear, config: ModelConfig) -> int:
    """Return the number of weights of all linears of a kind that a token passes."""
    return linear.weights // (linear.experts or 1) * _used(linear, config)


def _used(linear: Linear, config: ModelConfig) -> int:
    """Return the number of a layer's linears of a kind that a token passes."""
    return config.experts.num_experts_per_tok if config.experts and linear.experts else 1


def _bytes_not_chosen(config: ModelConfig, specs: Mapping[str, TensorSpec]) -> int:
    """Return the bytes of experts that a token does not choose."""
    total = 0
    for linear in linears(config):
        if linear.experts:
            found = sum(spec.bytes for name, spec in specs.items() if name.startswith(f"{linear.name}."))
            total += found // linear.experts * (linear.experts - _used(linear, config))
    return total
