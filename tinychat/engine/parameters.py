"""Binds the tensors of a model folder to the parameters of the compiled forward pass."""

from typing import Any

import numpy as np

from tinychat.engine.forward import Layer, Parameters
from tinychat.kernels.weights import Float32Weight, Int4Weight, Int8Weight, SplitWeight
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import FREQUENT

NO_WINDOW = 2**31
KINDS: dict[str, Any] = {"int4": Int4Weight, "int8": Int8Weight, "f32": Float32Weight}


def bind_parameters(folder: ModelFolder) -> Parameters:
    """Return the parameters as views of the mapped file; a tied `lm_head` is the embedding itself."""
    tensors, L = folder.tensors, folder.config.num_hidden_layers

    def weight(name: str) -> Any:
        stack = (L,) if name not in (FREQUENT, "embed_tokens", "lm_head") else ()
        kind = KINDS[folder.quantization.method_of(name)]
        *parts, _ = kind._fields
        bias = tensors.get(f"{name}.bias", np.zeros((*stack, 0), np.float32))
        return kind(*(tensors[f"{name}.{part}"] for part in parts), bias)

    def embedding() -> Any:
        rest = weight("embed_tokens")
        return SplitWeight(weight(FREQUENT), rest) if folder.quantization.frequent else rest

    def norm(name: str) -> Any:
        return tensors.get(name, np.zeros((L, 0), np.float32))

    config = folder.config
    return Parameters(
        embed_tokens=embedding(),
        layers=Layer(
            input_layernorm=norm("input_layernorm"),
            qkv_proj=weight("qkv_proj"),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            rotary_dim=np.array(config.rotary_dims, np.int64),
            window=np.array([window or NO_WINDOW for window in config.sliding_windows], np.int64),
            o_proj=weight("o_proj"),
            post_attention_layernorm=norm("post_attention_layernorm"),
            gate_up_proj=weight("gate_up_proj"),
            down_proj=weight("down_proj"),
        ),
        norm=tensors["norm"].reshape(-1),
        lm_head=embedding() if config.tie_word_embeddings else weight("lm_head"),
    )
