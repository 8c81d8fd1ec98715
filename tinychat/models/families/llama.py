"""Llama and those of its build: Mistral, Qwen2 and Qwen3.

Each layer adds attention and a gated MLP (SwiGLU) to the residual stream, both behind an RMS norm; queries and keys are
rotated (Touvron et al., 2023; github.com/huggingface/transformers, models/llama). Mistral has a window, Qwen2 biases of
queries, keys and values, Qwen3 a norm of each head's queries and keys.
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, windows_of_types
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS
from tinychat.models.tensors import Linear, Norm

LAYER = "model.layers.{}."
ATTENTION, MLP = f"{LAYER}self_attn.", f"{LAYER}mlp."


def read_llama(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are as the file says."""
    bias = values.flag("attention_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=values.flag("mlp_bias", False))


def read_mistral(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have the window, if there is one."""
    window = values.optional_integer("sliding_window", 1, MAX_POSITIONS) or 0
    return replace(config, sliding_windows=(window,) * config.num_hidden_layers)


def read_qwen2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The window is for the layers that ``layer_types`` names, or for those from ``max_window_layers`` on."""
    return replace(config, qkv_bias=True, sliding_windows=_qwen_windows(values, config.num_hidden_layers))


def read_qwen3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Windows are those of Qwen2; biases are as the file says."""
    bias, windows = values.flag("attention_bias", False), _qwen_windows(values, config.num_hidden_layers)
    return replace(config, qkv_bias=bias, o_bias=bias, qk_norm="head", sliding_windows=windows)


def _qwen_windows(values: ConfigValues, layers: int) -> tuple[int, ...]:
    used = values.flag("use_sliding_window", False)
    window = values.optional_integer("sliding_window", 1, MAX_POSITIONS) if used else None
    if values.get("layer_types") is not None:
        return windows_of_types(values, window, layers)
    first = values.integer("max_window_layers", 0, MAX_POSITIONS)
    return tuple(window or 0 if layer >= first else 0 for layer in range(layers))


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers; an embedding counts as one, tied models have no ``lm_head``."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    qkv = tuple(f"{ATTENTION}{name}_proj" for name in "qkv")
    gate_up = (f"{MLP}gate_proj", f"{MLP}up_proj")
    found = [
        Linear("embed_tokens", ("model.embed_tokens",), (V,), D, None),
        Linear("qkv_proj", qkv, (queries, keys, keys), D, L, config.qkv_bias),
        Linear("o_proj", (f"{ATTENTION}o_proj",), (D,), queries, L, config.o_bias),
        Linear("gate_up_proj", gate_up, (F, F), D, L, config.mlp_bias),
        Linear("down_proj", (f"{MLP}down_proj",), (D,), F, L, config.mlp_bias),
    ]
    if not config.tie_word_embeddings:
        found.append(Linear("lm_head", ("lm_head",), (V,), D, None))
    return found


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    D, d, L = config.hidden_size, config.head_dim, config.num_hidden_layers
    found = [
        Norm("input_layernorm", f"{LAYER}input_layernorm", D, L),
        Norm("post_attention_layernorm", f"{LAYER}post_attention_layernorm", D, L),
        Norm("norm", "model.norm", D, None),
    ]
    if config.qk_norm:
        found += [Norm(f"{x}_norm", f"{ATTENTION}{x}_norm", d, L, padded=False) for x in "qk"]
    return found


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

FAMILIES = (
    Family(
        "LlamaForCausalLM",
        "llama",
        "Llama 1, 2, 3, 3.1-3.3, TinyLlama, SmolLM2, CodeLlama",
        "RoPE default, linear, dynamic, llama3, yarn; attention and MLP biases",
        _LLAMA,
        read_llama,
        linears,
        norms,
    ),
    Family("MistralForCausalLM", "mistral", "Mistral", "sliding window", _MISTRAL, read_mistral, linears, norms),
    Family(
        "Qwen2ForCausalLM",
        "qwen2",
        "Qwen2, Qwen2.5",
        "q/k/v biases, sliding window by layer",
        _QWEN2,
        read_qwen2,
        linears,
        norms,
    ),
    Family(
        "Qwen3ForCausalLM",
        "qwen3",
        "Qwen3 (dense)",
        "q/k norm, sliding window by layer",
        _QWEN3,
        read_qwen3,
        linears,
        norms,
    ),
)
