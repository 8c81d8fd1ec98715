"""What variants are made of."""

import hashlib
from dataclasses import dataclass

COMMON = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "hidden_act": "silu",
    "vocab_size": 517,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA_NET = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 48,
}
MAMBA = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_head": 48,
    "mamba_d_state": 16,
    "mamba_expand": 3,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def longrope(pairs, **others):
    """Return a rope_scaling whose factors for short and for long sequences differ from pair to pair."""
    short, long = [1 + 0.05 * i for i in range(pairs)], [1.5 + 0.7 * i for i in range(pairs)]
    return {"type": "longrope", "short_factor": short, "long_factor": long, **others}


@dataclass(frozen=True)
class Variant:
    """One checkpoint: its name, ``config.json``, how the weights are stored, and what transformers takes instead."""

    name: str
    config: dict
    dtype: str = "float32"
    files: str = "safetensors"  # safetensors | safetensors-sharded | bin | bin-sharded
    theirs: dict | None = None

    @property
    def seed(self):
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "little")
