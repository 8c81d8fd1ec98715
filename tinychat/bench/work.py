"""The cost of one token: the numbers that rates are divided by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig
from tinychat.models.layout import FREQUENT, Quantization, TensorSpec, tensor_specs
from tinychat.models.tensors import Linear


@dataclass(frozen=True)
class Work:
    """Costs of one token.

    Attributes
    ----------
    weight_bytes : int
        Bytes of weights that decoding reads: all but the embedding, of which it reads a row, and of experts those of
        the chosen ones.
    cache_bytes : int
        Bytes of the KV cache that decoding reads for each token before.
    multiply_adds : int
        Of the linears inside the layers: what prefill does for every token; attention is not counted.
    file_bytes : int
        Bytes of all weights.
    """

    weight_bytes: int
    cache_bytes: int
    multiply_adds: int
    file_bytes: int


def work_of(config: ModelConfig, quantization: Quantization, cache_bytes: int) -> Work:
    """Return the costs of one token of a model."""
    specs = tensor_specs(config, quantization)
    total = sum(spec.bytes for spec in specs.values())
    embedding = sum(spec.bytes for name, spec in specs.items() if name.startswith(("embed_tokens.", FREQUENT)))
    inside = [linear for linear in linears(config) if linear.layers is not None]
    return Work(
        weight_bytes=total - _bytes_not_chosen(config, specs) - (0 if config.tie_word_embeddings else embedding),
        cache_bytes=cache_bytes,
        multiply_adds=sum(linear.weights // (linear.experts or 1) * _used(linear, config) for linear in inside),
        file_bytes=total,
    )


def _used(linear: Linear, config: ModelConfig) -> int:
    """Return how many of a layer's linears of a kind a token passes."""
    return config.experts.num_experts_per_tok if config.experts and linear.experts else 1


def _bytes_not_chosen(config: ModelConfig, specs: Mapping[str, TensorSpec]) -> int:
    """Return how many bytes of experts a token has no use for."""
    total = 0
    for linear in linears(config):
        if linear.experts:
            found = sum(spec.bytes for name, spec in specs.items() if name.startswith(f"{linear.name}."))
            total += found // linear.experts * (linear.experts - _used(linear, config))
    return total
