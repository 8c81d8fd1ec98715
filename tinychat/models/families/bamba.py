"""Bamba: Mamba-2 in most layers, attention in the others, and an MLP in each.

Half of the channels of a head of attention are rotated, whatever the file says (IBM, Princeton, CMU and UIUC, 2024,
https://huggingface.co/blog/bamba; github.com/huggingface/transformers, models/bamba).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, check_state_layers
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, TensorNames, layer_norms
from tinychat.models.families import llama
from tinychat.models.family import Family
from tinychat.models.mamba import DEFAULTS, read_mamba, with_head_size

MLP = f"{LAYER}feed_forward."
TENSORS = TensorNames(
    gate_up=(f"{MLP}gate_proj", f"{MLP}up_proj"),
    down=f"{MLP}down_proj",
    norms=layer_norms(f"{LAYER}input_layernorm", f"{LAYER}pre_ff_layernorm", "model.final_layernorm"),
)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the size of a head of states, and the channels that are rotated."""
    return {**with_head_size(raw), "partial_rotary_factor": 0.5}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The file lists the layers with attention."""
    count, listed = config.num_hidden_layers, values.get("attn_layer_indices") or []
    if not isinstance(listed, list) or not all(type(layer) is int and 0 <= layer < count for layer in listed):
        raise values.error("attn_layer_indices", f"a list of layers, each from 0 to {count - 1}")
    layers = [layer for layer in range(count) if layer not in listed]
    check_state_layers(values, config, layers)
    return replace(llama.read_llama(values, config), mamba=read_mamba(values, layers))


BAMBA = Family(
    "BambaForCausalLM",
    "bamba",
    "Bamba 9B",
    "Mamba-2 in most layers, half of each head rotated in the others",
    {**DEFAULTS, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 262144},
    read,
    TENSORS,
    partial_rotary=True,
    prepared=prepared,
)
