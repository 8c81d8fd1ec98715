"""ModernBERT: an encoder of Llama's order, with layer norms, gates, and windows in two of three layers.

The embedding is normed, so the first layer's attention has no norm before it: its linears are those of other heads,
which are as many here. Windows reach to both sides, and have a rotation of their own (Warner et al., 2024,
https://arxiv.org/abs/2412.13663; github.com/huggingface/transformers, models/modernbert).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, TensorNames, decoder_norms
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_sliding_theta, split_rope
from tinychat.models.tensors import Norm

TENSORS = TensorNames(
    embed="model.embeddings.tok_embeddings",
    qkv=(f"{LAYER}attn.Wqkv",),
    o=f"{LAYER}attn.Wo",
    gate_up=(f"{LAYER}mlp.Wi",),
    down=f"{LAYER}mlp.Wo",
    norms={
        "embed_norm": "model.embeddings.norm",
        "input_layernorm": f"{LAYER}attn_norm",
        "post_attention_layernorm": f"{LAYER}mlp_norm",
        "norm": "model.final_norm",
    },
)
DEFAULTS = {
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
NAMES = {"rms_norm_eps": "norm_eps", "hidden_act": "hidden_activation", "rope_theta": "global_rope_theta"}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration; all but every third layer have the window, from the second on, unless the file says."""
    values.require(norm_bias=False)
    interval = values.integer("global_attn_every_n_layers", 1, 4096)
    windows = read_windows(values, config.num_hidden_layers, lambda layer: layer % interval != 0)
    return replace(
        read_llama(values, config),
        layer_norm=True,
        bidirectional=True,
        # The file counts both sides together, without the query itself.
        sliding_windows=tuple(window and window // 2 + 1 for window in windows),
        sliding_rope_theta=read_sliding_theta(values, values.number("local_rope_theta", 1.001, 1e30)),
        other_heads=config.num_attention_heads,
        other_heads_at=(0,),
    )


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms; the first layer has none before attention."""
    found, later = decoder_norms(config, names), tuple(range(1, config.num_hidden_layers))
    return [replace(each, layers=len(later), at=later) if each.name == "input_layernorm" else each for each in found]


MODERNBERT = Family(
    "ModernBertModel",
    "modernbert",
    "ModernBERT: gte-modernbert, granite-embedding-r2",
    "an encoder with windows, rotation and gates: embeddings alone",
    DEFAULTS,
    read,
    TENSORS,
    norms=norms,
    names=NAMES | {"sliding_window": "local_attention"},
    prepared=split_rope,
    also_written=("ModernBertForMaskedLM",),
)
