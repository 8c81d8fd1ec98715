"""StableLM and StableLM 2: Llama's layers with layer norms, of which a part of each head is rotated.

Some sizes have biases of queries, keys and values, or an MLP that stands beside attention and shares its norm
(Bellagente et al., 2024, https://arxiv.org/abs/2402.17834; github.com/huggingface/transformers, models/stablelm).
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 0.25,
}


def refuse_head_norms(values: ConfigValues) -> None:
    """Refuse layer norms of queries and keys.

    Raises
    ------
    UnsupportedModelError
    """
    if values.flag("qk_layernorm", False):
        raise UnsupportedModelError(f"{values.source}: qk_layernorm is not supported")


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases and the place of the MLP are as the file says."""
    refuse_head_norms(values)
    return replace(
        config,
        layer_norm=True,
        qkv_bias=values.flag("use_qkv_bias", False),
        parallel=values.flag("use_parallel_residual", False),
    )


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms: an MLP beside attention reads what attention's norm gives."""
    return layer_norms(config, llama.norms(config))


def layer_norms(config: ModelConfig, found: list[Norm]) -> list[Norm]:
    """Return Llama's norms with biases; where the MLP stands beside attention, both have the first one."""
    shared = {"post_attention_layernorm": found[0].source} if config.parallel else {}
    return [replace(norm, bias=True, source=shared.get(norm.name, norm.source)) for norm in found]


FAMILIES = (
    Family(
        "StableLmForCausalLM",
        "stablelm",
        "StableLM, StableLM 2",
        "layer norms, a part of each head rotated, MLP beside attention",
        DEFAULTS,
        read,
        llama.linears,
        norms,
        partial_rotary=True,
        names={"rms_norm_eps": "layer_norm_eps"},
    ),
)
