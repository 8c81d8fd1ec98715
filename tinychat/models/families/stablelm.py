"""StableLM and StableLM 2: Llama's layers with layer norms, of which a part of each head is rotated.

Some sizes have biases of queries, keys and values, or an MLP that stands beside attention and shares its norm, and
norms of each head's queries and keys
(Bellagente et al., 2024, https://arxiv.org/abs/2402.17834; github.com/huggingface/transformers, models/stablelm).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LLAMA_NORMS, TensorNames, decoder_norms
from tinychat.models.family import Family
from tinychat.models.tensors import Norm, joined

DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 0.25,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases, and an MLP beside or after attention, are those of the file."""
    return replace(
        config,
        layer_norm=True,
        qk_norm="heads" if values.flag("qk_layernorm", False) else None,
        qkv_bias=values.flag("use_qkv_bias", False),
        parallel=values.flag("use_parallel_residual", False),
    )


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms: an MLP beside attention shares its norm; those of heads have a tensor each."""
    shared = {**LLAMA_NORMS, "post_attention_layernorm": LLAMA_NORMS["input_layernorm"]}
    found = decoder_norms(config, replace(names, norms=shared) if config.parallel else names)
    heads = {"q_norm": ("q", config.num_attention_heads), "k_norm": ("k", config.num_key_value_heads)}

    def of_heads(norm: Norm) -> Norm:
        part, count = heads[norm.name]
        stem = f"{ATTENTION}{part}_layernorm.norms."
        return replace(norm, source=joined(*(f"{stem}{head}" for head in range(count))), flattened=True)

    return [of_heads(each) if each.name in heads else each for each in found]


STABLELM = Family(
    "StableLmForCausalLM",
    "stablelm",
    "StableLM, StableLM 2",
    "layer norms, a part of each head rotated, MLP beside attention, q/k layer norms of heads",
    DEFAULTS,
    read,
    TensorNames(norm_bias=True),
    norms=norms,
    partial_rotary=True,
    names={"rms_norm_eps": "layer_norm_eps"},
)
