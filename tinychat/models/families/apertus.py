"""Apertus: Llama's layers with q/k norms, and an MLP without gates, whose activation has two numbers in each layer.

The vocabulary of Apertus 1.5 ends with tokens of images and sound, which the output matrix may lack: they are left out
(Apertus Team, 2025, https://arxiv.org/abs/2509.14233; github.com/huggingface/transformers, models/apertus and
apertus1p5).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, LLAMA_NORMS, MLP, TensorNames, decoder_linears, decoder_norms
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, rows_of

# Each is added to the softplus of the checkpoint's number.
NUMBERS = {"xielu_positive": ("alpha_p", 0.0), "xielu_negative": ("alpha_n", 0.5)}
TENSORS = TensorNames(
    gate_up=(f"{MLP}up_proj",),
    norms={
        **LLAMA_NORMS,
        "input_layernorm": f"{LAYER}attention_layernorm",
        "post_attention_layernorm": f"{LAYER}feedforward_layernorm",
    },
)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file without its activation, if it is the only one that is read."""
    return {key: value for key, value in raw.items() if (key, value) != ("hidden_act", "xielu")}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases of attention are those of the file."""
    values.require(hidden_act=None)
    return replace(read_llama(values, config), gated=False, mlp_bias=False, qk_norm="head", hidden_act="xielu")


def read_1_5(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The vocabulary is that of the output matrix."""
    config = read(values, config)
    written = values.optional_integer("output_vocab_size", 1, config.vocab_size) or config.vocab_size
    if written == config.vocab_size:
        return config
    if config.tie_word_embeddings:
        raise values.error("output_vocab_size", f"{config.vocab_size} where tie_word_embeddings is true")
    return replace(config, vocab_size=written, embedded_ids=config.vocab_size)


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; of the embedding, the rows of tokens that can be written."""
    embedding, *others = decoder_linears(config, names)
    if config.embedded_ids:
        source, _ = rows_of(names.embed, config.vocab_size, config.embedded_ids - config.vocab_size)
        embedding = replace(embedding, sources=(source,))
    return [embedding, *others]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the numbers of activations."""
    L = config.num_hidden_layers
    numbers = [
        Norm(name, f"{MLP}act_fn.{source}", 1, L, padded=False, offset=offset, function="softplus")
        for name, (source, offset) in NUMBERS.items()
    ]
    return [*decoder_norms(config, names), *numbers]


DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 65536,
    "rope_theta": 12e6,
    "rope_parameters": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}

APERTUS = Family(
    "ApertusForCausalLM",
    "apertus",
    "Apertus 8B, 70B",
    "q/k norm, MLP of xIELU without gates, llama3",
    DEFAULTS,
    read,
    TENSORS,
    norms=norms,
    prepared=prepared,
)
APERTUS_1_5 = Family(
    "Apertus1p5TextForCausalLM",
    "apertus1p5_text",
    "Apertus 1.5 (text)",
    "the same",
    DEFAULTS,
    read_1_5,
    TENSORS,
    linears,
    norms,
    prepared=prepared,
)
