"""The numbers of a configuration that the compiled forward pass takes."""

import numpy as np

from tinychat.engine.arguments import ModelDims
from tinychat.models.config import ModelConfig

NO_WINDOW = 2**31
LOG2_E = 1.4426950408889634


def dims_of(config: ModelConfig) -> ModelDims:
    """Return the numbers of a model."""
    found, net, latents = config.experts, config.recurrence, config.latents
    experts = 0, 0, False, False, 1, 1
    if found:
        shared = found.shared_intermediate_size, found.norm_topk_prob, found.shared_gate
        experts = found.intermediate_size, *shared, found.n_group, found.topk_group
    states = (net.key_heads, net.value_heads, net.key_dim, net.value_dim, net.taps) if net else (0,) * 5
    delta = config.delta_net
    ranks = (latents.kv_lora_rank, latents.qk_nope_head_dim, latents.v_head_dim) if latents else (0,) * 3
    return ModelDims(
        len(config.layer_runs),
        config.num_attention_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
        np.float32(config.embedding_multiplier),
        *experts,
        *states,
        np.float32(delta.rate_scale if delta else 1.0),
        delta.rank if delta else 0,
        np.float32(delta.decay_bound if delta else 0.0),
        np.float32(delta.norm_eps if delta else 0.0),
        config.varied.input_size if config.varied else 0,
        config.varied.input_ids if config.varied else 0,
        *ranks,
        np.float32(config.rms_norm_eps if config.post_norm_eps is None else config.post_norm_eps),
    )


def stacked_dims(dims: ModelDims, layers: int) -> ModelDims:
    """Return the same numbers for each layer, as parameters have them."""
    return ModelDims._make(np.full(layers, value) for value in dims)
