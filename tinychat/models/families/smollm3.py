"""SmolLM3: Llama's layers, of which some do not rotate queries and keys (NoPE).

Without positions of their own, those layers find distant tokens as well as near ones (Yang et al., 2025,
https://arxiv.org/abs/2501.18795; github.com/huggingface/transformers, models/smollm3).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2e6,
    "no_rope_layer_interval": 4,
    "tie_word_embeddings": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are those of the file; windows, if they are used, are for the layers that do not rotate."""
    config = llama.read_llama(values, config)
    rotated = _rotated_layers(values, config.num_hidden_layers)
    windows = read_windows(values, config.num_hidden_layers, lambda layer: not rotated[layer], switched=True)
    rotary_dims = tuple(config.rotary_dim if rotates else 0 for rotates in rotated)
    return replace(config, rotary_dims=rotary_dims, sliding_windows=windows)


def _rotated_layers(values: ConfigValues, layers: int) -> list[bool]:
    """Read whether each layer rotates; in spite of its name, ``no_rope_layers`` has a 1 for those that do."""
    if values.get("no_rope_layers") is None:
        interval = values.integer("no_rope_layer_interval", 1, 4096)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    return read_flags(values, "no_rope_layers", layers, "rotates")


def read_flags(values: ConfigValues, key: str, layers: int, what: str) -> list[bool]:
    """Read a list with a 1 for each layer that has or does something, which errors tell, and a 0 for others."""
    flags = values.get(key)
    if not isinstance(flags, list) or len(flags) < layers or not all(flag in (0, 1) for flag in flags):
        raise values.error(key, f"a list of {layers} numbers, 1 for each layer that {what}, else 0")
    return [flag == 1 for flag in flags[:layers]]


SMOLLM3 = Family(
    "SmolLM3ForCausalLM", "smollm3", "SmolLM3", "layers without rotation, sliding window by layer", DEFAULTS, read
)
