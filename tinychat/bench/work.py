"""What one token costs: the numbers that rates are divided by."""

from __future__ import annotations

from dataclasses import dataclass

from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig
from tinychat.models.layout import FREQUENT, Quantization, tensor_specs


@dataclass(frozen=True)
class Work:
    """Costs of one token.

    Attributes
    ----------
    weight_bytes : int
        Bytes of weights that decoding reads: all but the embedding, of which it reads a row.
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
        weight_bytes=total if config.tie_word_embeddings else total - embedding,
        cache_bytes=cache_bytes,
        multiply_adds=sum((linear.layers or 0) * sum(linear.rows) * linear.columns for linear in inside),
        file_bytes=total,
    )
