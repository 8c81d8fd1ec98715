"""EXAONE 3, 3.5 and Deep: Llama's layers by GPT-2's names.

(LG AI Research, 2024, https://arxiv.org/abs/2412.04862; the code of huggingface.co/LGAI-EXAONE;
github.com/huggingface/transformers, models/exaone.)
"""

from tinychat.models.decoder import TensorNames, layer_norms
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family, with_names

LAYER = "transformer.h.{}."
ATTENTION, MLP = f"{LAYER}attn.attention.", f"{LAYER}mlp."
TENSORS = TensorNames(
    embed="transformer.wte",
    qkv=(f"{ATTENTION}q_proj", f"{ATTENTION}k_proj", f"{ATTENTION}v_proj"),
    o=f"{ATTENTION}out_proj",
    gate_up=(f"{MLP}c_fc_0", f"{MLP}c_fc_1"),
    down=f"{MLP}c_proj",
    norms=layer_norms(f"{LAYER}ln_1", f"{LAYER}ln_2", "transformer.ln_f"),
)
NAMES = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}

EXAONE = Family(
    "ExaoneForCausalLM",
    "exaone",
    "EXAONE 3, 3.5, Deep",
    "RoPE llama3",
    {"layer_norm_epsilon": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 4096, "rope_theta": 5e5},
    read_llama,
    TENSORS,
    also_written=("LlamaForCausalLM",),
    names=NAMES,
    prepared=with_names(NAMES),
)
