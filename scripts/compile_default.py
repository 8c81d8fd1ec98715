"""Compile what runs SmolLM2-135M-Instruct, beside its download: see `scripts/chat`.

It ends with the process that started it. Only Numba has to be installed when it begins. Python compiles modules when
they are first imported, so those that a first chat needs are imported here too, as far as they are there by then.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import numpy as np

from tinychat.engine.precompile import compile_for, end_with_parent
from tinychat.models.architectures import parse_config
from tinychat.models.config import ModelConfig
from tinychat.models.layout import Quantization
from tinychat.models.passthrough import Form, PassthroughLinear

# What its configuration says, and how its GGUF file stores weights: in Q4_1, the embedding in Q8_0.
LAYERS = 30
EPSILON = float(np.float32(1e-5))
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": EPSILON,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
FOUR = Form(bits=4, numbers="F16", group=32, span=0, offsets=True)
EIGHT = Form(bits=8, numbers="F16", group=32, span=0, offsets=False)
PARTS = {"qkv_proj": 3, "o_proj": 1, "gate_up_proj": 2, "down_proj": 1}
IMPORTED = (
    "tinychat.cli",
    "tinychat.commands.chat",
    "tinychat.chat.repl",
    "tinychat.terminal.line_editor",
    "tinychat.conversion.passthrough",
    "tinychat.conversion.pipeline",
    "tinychat.checkpoint.gguf_checkpoint",
    "tinychat.generate.model",
    "tinychat.text.template",
    "tinychat.text.huggingface_tokenizer",
    "tinychat.engine.compiling",
    "gguf.quants",
    "jinja2.compiler",
    "tokenizers",
)


def usual() -> tuple[ModelConfig, Quantization]:
    """Return the configuration, and how the weights are stored."""
    linears = tuple((name, PassthroughLinear((FOUR,), ((4,) * parts,) * LAYERS)) for name, parts in PARTS.items())
    embedding = ("embed_tokens", PassthroughLinear((EIGHT,), ((8,),)))
    return parse_config(SHAPE, "SmolLM2-135M-Instruct"), Quantization("native", passthrough=(embedding, *linears))


if __name__ == "__main__":
    end_with_parent()
    compile_for(*usual())
    for name in IMPORTED:
        # Of a package that is being installed, anything may be missing.
        with suppress(Exception):
            import_module(name)
