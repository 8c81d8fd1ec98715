"""Phi-3, Phi-3.5 and Phi-4: layers like Llama's, their projections fused in the checkpoint.

Phi-4-mini rotates a part of each head. Models for long contexts have LongRoPE, the first one for 4096 tokens a window
(Abdin et al., 2024, https://arxiv.org/abs/2404.14219; github.com/huggingface/transformers, models/phi3).
"""

from tinychat.models.decoder import ATTENTION, MLP, TensorNames
from tinychat.models.families.llama import read_mistral
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}
TENSORS = TensorNames(qkv=(f"{ATTENTION}qkv_proj",), gate_up=(f"{MLP}gate_up_proj",))

PHI3 = Family(
    "Phi3ForCausalLM",
    "phi3",
    "Phi-3, Phi-3.5, Phi-4 and their mini",
    "fused projections, a part of each head rotated, longrope, sliding window",
    DEFAULTS,
    read_mistral,
    TENSORS,
    partial_rotary=True,
)
