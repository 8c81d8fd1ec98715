"""Binds the tensors of a model folder to the parameters of the compiled forward pass."""

from typing import Any

import numpy as np

from tinychat.kernels.weights import Float32Weight, Int4Weight, Int8Weight
from tinychat.model.folder import ModelFolder
from tinychat.model.forward import Norms, Parameters

QUANTIZED = {"int4": Int4Weight, "int8": Int8Weight}


def bind_parameters(folder: ModelFolder) -> Parameters:
    """Return the parameters as views of the mapped file; a tied `lm_head` is the embedding itself."""
    tensors, L = folder.tensors, folder.config.num_hidden_layers

    def weight(name: str) -> Any:
        stack = (L,) if name not in ("embed_tokens", "lm_head") else ()
        bias = tensors.get(f"{name}.bias", np.zeros((*stack, 0), np.float32))
        if folder.quantization.method == "f32":
            return Float32Weight(tensors[f"{name}.values"], bias)
        kind = QUANTIZED[folder.quantization.method]
        return kind(tensors[f"{name}.packed"], tensors[f"{name}.scales"], bias)

    def norm(name: str) -> Any:
        return tensors.get(name, np.zeros((L, 0), np.float32))

    return Parameters(
        embed_tokens=weight("embed_tokens"),
        qkv_proj=weight("qkv_proj"),
        o_proj=weight("o_proj"),
        gate_up_proj=weight("gate_up_proj"),
        down_proj=weight("down_proj"),
        lm_head=weight("embed_tokens" if folder.config.tie_word_embeddings else "lm_head"),
        norms=Norms(
            input_layernorm=norm("input_layernorm"),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            post_attention_layernorm=norm("post_attention_layernorm"),
            norm=tensors["norm"].reshape(-1),
        ),
    )
