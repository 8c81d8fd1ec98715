"""Nemotron Labs Dory: normalized GPT whose middle layers run several times, with gates of attention.

Layers have a window, but every fourth; the rotation of those that have it has a base of its own. Vectors are stored as
multiples of what they began with in training. A published file lists attention and MLP as layers of their own
(NVIDIA, 2026; github.com/huggingface/transformers, models/dory).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, read_windows, with_gates
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LAYER, MLP, TensorNames
from tinychat.models.family import Family
from tinychat.models.loops import Loops
from tinychat.models.normalized import EPS, RATES, Normalized, length_norm, width_factor
from tinychat.models.rope_scaling import read_sliding_theta, split_rope
from tinychat.models.tensors import Norm, times_rows

TENSORS = TensorNames(
    qkv=(
        f"{ATTENTION}q_proj",
        times_rows(f"{ATTENTION}gate_proj", f"{ATTENTION}s_gate", f"{ATTENTION}s_gate"),
        f"{ATTENTION}k_proj",
        f"{ATTENTION}v_proj",
    ),
    gate_up=tuple(times_rows(f"{MLP}{part}_proj", f"{MLP}suv_{part}") for part in ("gate", "up")),
    lm_head=times_rows("lm_head", "lm_head.logit_scale"),
)
COUNTS = ("num_hidden_layers", "n_input_layers", "n_recurrent_layers", "n_output_layers")
MLP_LAYER = "mlp"
SLIDING_THETA = 1e4
# Published names of what stands in a layer of its own, and what they are called here.
BLOCK = re.compile(r"layers\.(\d+)\.(mixer|attn_alpha|mlp_alpha)(?=\.|$)")
PARTS = {"attn_alpha": ("lambda_1",) * 2, "mlp_alpha": ("lambda_2",) * 2, "mixer": ("self_attn", "mlp")}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with a layer for each pair of attention and MLP."""
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and MLP_LAYER in kinds:
        halves = {key: count // 2 for key in COUNTS if type(count := raw.get(key)) is int}
        raw = {**raw, **halves, "layer_types": kinds[::2]}
    return split_rope(raw)


def renamed(name: str) -> str:
    """Return the name by which a tensor of a published file is read."""
    name = re.sub(r"^backbone\.", "model.", name).replace("model.embeddings.", "model.embed_tokens.")
    name = name.replace(".self_attn.g_proj.", ".self_attn.gate_proj.").replace(".mixer.g_proj.", ".mixer.gate_proj.")

    def of_layer(found: re.Match[str]) -> str:
        block = int(found[1])
        return f"layers.{block // 2}.{PARTS[found[2]][block % 2]}"

    return BLOCK.sub(of_layer, name)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every fourth layer have the window, unless the file names them."""
    config = with_gates(values, config)
    values.require(attention_bias=False, tie_word_embeddings=False)
    D, L, d = config.hidden_size, config.num_hidden_layers, config.head_dim
    first = values.integer("n_input_layers", 1, L - 1)
    behind = values.integer("n_output_layers", 0, L - 1)
    count = values.integer("n_recurrent_loops", 1, 64)
    repeated = L - first - behind
    if repeated < 1 or values.optional_integer("n_recurrent_layers", 1, L) not in (None, repeated):
        raise values.error("n_recurrent_layers", f"{max(repeated, 1)}: with those before and behind, {L} layers")
    if count > 1 and values.optional_text("recurrent_kv_cache_mode") != "per_loop":
        # Earlier loops would see what the last one left of tokens of earlier steps, and their own keys of this step's.
        raise UnsupportedModelError(
            f"{values.source}: recurrent_kv_cache_mode {values.get('recurrent_kv_cache_mode')!r} is not supported, as"
            ' replies would depend on where steps begin; supported is "per_loop"'
        )
    start = values.number("initializer_range", 1e-6, 1.0)
    factors = [width_factor(size, D) for size in (d, d, config.num_attention_heads * d)]
    scales = {
        "qkv_proj": (factors[0], (D**0.25 / start) ** 2, *factors[1:]),
        "gate_up_proj": (D**0.5, D**0.5 * width_factor(config.intermediate_size, D)),
        "lm_head": (1 / start,),
    }
    return replace(
        config,
        sliding_windows=read_windows(values, L, lambda layer: (layer + 1) % 4 != 0),
        sliding_rope_theta=read_sliding_theta(values, SLIDING_THETA),
        rms_norm_eps=EPS / D,
        qk_norm="head",
        mlp_bias=values.flag("mlp_bias", False),
        sub_norms=True,
        linear_multipliers=tuple(scales.items()),
        normalized=Normalized(values.number("ngpt_alpha_init", 1e-6, 1e3) / start, d / start**2),
        loops=Loops(first, first + repeated, count) if count > 1 else None,
    )


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, which have no tensors, and the vectors that rates and the scales of queries are of."""
    assert config.normalized is not None
    L, D, H, d = config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.head_dim
    rates = zip(RATES.values(), (f"{LAYER}lambda_1", f"{LAYER}lambda_2"))
    return [
        length_norm("embed_norm", D, None),
        *(length_norm(name, D, L) for name in RATES),
        *(length_norm(name, d, L, padded=False) for name in ("q_norm", "k_norm")),
        length_norm("attn_sub_norm", H * d, L),
        length_norm("ffn_sub_norm", config.intermediate_size, L),
        *(Norm(name, source, D, L, scale=config.normalized.rate_scale, function="abs") for name, source in rates),
        Norm(
            "query_scales",
            f"{ATTENTION}sqk",
            H * d,
            L,
            padded=False,
            scale=config.normalized.query_scale,
            function="square",
        ),
    ]


DORY = Family(
    "DoryForCausalLM",
    "dory",
    "Nemotron Labs Dory 1.0 4B",
    "normalized GPT, layers that run in loops, gates of attention, sliding window by layer",
    {
        "rms_norm_eps": EPS,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "initializer_range": 0.0177,
        "rope_theta": 1e7,
        "sliding_window": 1024,
        "ngpt_alpha_init": 0.05,
        "n_input_layers": 8,
        "n_output_layers": 8,
        "n_recurrent_loops": 2,
        "recurrent_kv_cache_mode": "per_loop",
    },
    read,
    TENSORS,
    norms=norms,
    prepared=prepared,
    renamed=renamed,
)
