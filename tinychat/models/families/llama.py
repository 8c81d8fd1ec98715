"""Llama and those of its build: Mistral, Qwen2, Qwen3 and EuroBERT.

Each layer adds attention and a gated MLP (SwiGLU) to the residual stream, both behind an RMS norm; queries and keys are
rotated (Touvron et al., 2023; github.com/huggingface/transformers, models/llama). Mistral has a window, Qwen2 biases of
queries, keys and values, Qwen3 a norm of each head's queries and keys. EuroBERT's tokens attend to later ones (Boizard
et al., 2025, https://arxiv.org/abs/2503.05500).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_window, read_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS


def read_llama(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are those of the file."""
    return replace(with_attention_bias(values, config), mlp_bias=values.flag("mlp_bias", False))


def read_eurobert(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of Llama, whose tokens attend to later ones, too."""
    return replace(read_llama(values, config), bidirectional=True)


def read_mistral(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have the window, if there is one."""
    return replace(config, sliding_windows=(read_window(values) or 0,) * config.num_hidden_layers)


def read_qwen2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The window is for the layers that ``layer_types`` names, or for those from ``max_window_layers`` on."""

    def is_windowed(layer: int) -> bool:
        return layer >= values.integer("max_window_layers", 0, MAX_POSITIONS)

    windows = read_windows(values, config.num_hidden_layers, is_windowed, switched=True)
    return replace(config, qkv_bias=True, sliding_windows=windows)


def read_qwen3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Windows are those of Qwen2; biases are those of the file."""
    return replace(with_attention_bias(values, read_qwen2(values, config)), qk_norm="head")


_COMMON = {"rms_norm_eps": 1e-6}
_LLAMA = {**_COMMON, "max_position_embeddings": 2048}
_MISTRAL = {**_COMMON, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}
_QWEN2 = {
    **_COMMON,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_QWEN3 = {**_QWEN2, "head_dim": 128}

LLAMA = Family(
    "LlamaForCausalLM",
    "llama",
    "Llama 1, 2, 3, 3.1-3.3, TinyLlama, SmolLM2, CodeLlama",
    "RoPE default, linear, dynamic, llama3, yarn; attention and MLP biases",
    _LLAMA,
    read_llama,
)
MISTRAL = Family("MistralForCausalLM", "mistral", "Mistral", "sliding window", _MISTRAL, read_mistral)
QWEN2 = Family(
    "Qwen2ForCausalLM", "qwen2", "Qwen2, Qwen2.5", "q/k/v biases, sliding window by layer", _QWEN2, read_qwen2
)
QWEN3 = Family("Qwen3ForCausalLM", "qwen3", "Qwen3 (dense)", "q/k norm, sliding window by layer", _QWEN3, read_qwen3)
EUROBERT = Family(
    "EuroBertModel",
    "eurobert",
    "EuroBERT",
    "an encoder of Llama's layers: embeddings alone",
    _LLAMA | {"rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "tie_word_embeddings": True},
    read_eurobert,
    also_written=("EuroBertForMaskedLM",),
)
