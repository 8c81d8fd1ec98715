"""Multi-head latent attention: the cache holds one latent for all heads, of which their keys and values are linears.

A head's query has a part that meets the latent, through a matrix of the head's own, and one that is rotated and meets a
rotated key, which all heads share (DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434). So attention has one key/value
head: its key is the rotated part and the latent, its value the latent.
"""

from dataclasses import dataclass

from tinychat.models.config_values import ConfigValues
from tinychat.models.state_layers import read_dim

WIDEST = 1 << 14


@dataclass(frozen=True, slots=True)
class Latents:
    """The sizes of latent attention, by their names in `config.json`."""

    q_lora_rank: int  # of the latent that queries are linears of; 0: there is none
    kv_lora_rank: int
    qk_nope_head_dim: int  # of each query, the channels that are not rotated
    qk_rope_head_dim: int
    v_head_dim: int
    neighbours: bool  # channels 2i and 2i + 1 are rotated together in the checkpoint

    @property
    def query_dim(self) -> int:
        """Channels of each query of the checkpoint."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def key_dim(self) -> int:
        """Channels of a key, as it is in the cache."""
        return self.qk_rope_head_dim + self.kv_lora_rank


def read_latents(values: ConfigValues, rotated: int, neighbours: bool) -> Latents:
    """Read the values that all families have of latent attention; rotated : channels of each head."""
    return Latents(
        q_lora_rank=values.optional_integer("q_lora_rank", 1, WIDEST) or 0,
        kv_lora_rank=read_dim(values, "kv_lora_rank"),
        qk_nope_head_dim=values.integer("qk_nope_head_dim", 1, WIDEST),
        qk_rope_head_dim=rotated,
        v_head_dim=read_dim(values, "v_head_dim"),
        neighbours=neighbours,
    )
