"""Inkling 2 Mini: layers that read mixtures of what blocks of layers gave, and run in loops that tell each other.

Most layers have a window. Scores have a bias by distance that each query weighs for itself, and a sink of its own;
queries and keys are no longer than a bound; keys, values and what attention and MLP give are convolved with those of
earlier positions. Every layer has experts, whose gates and inputs have soft caps
(Thinking Machines, 2026; github.com/huggingface/transformers, models/inkling2_loop).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.block_mixtures import BlockMixtures, mixture_linears, mixture_norms
from tinychat.models.config import ModelConfig, read_layer_types, with_gates
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.decoder import EXPERT, LAYER, MLP, ExpertNames, TensorNames, decoder_linears, decoder_norms
from tinychat.models.experts import read_sigmoid_experts
from tinychat.models.family import Family
from tinychat.models.loops import Loops
from tinychat.models.state_layers import LANES, LONGEST
from tinychat.models.tensors import Linear, Norm, alternating_order, rows_of

WINDOWED, WHOLE = "hybrid_sliding", "hybrid"  # kinds of layers
ATTENTION, LAST = f"{LAYER}attn.", "model."
TENSORS = TensorNames(
    embed="model.embed",
    o=f"{ATTENTION}wo_ud",
    lm_head="model.unembed",
    norms={"post_attention_layernorm": f"{LAYER}mlp_norm", "norm": "model.norm", "embed_norm": "model.embed_norm"},
    experts=ExpertNames(gate_up=(f"{EXPERT}w13_weight",), down=f"{EXPERT}w2_weight", bias=f"{MLP}gate.bias"),
)
# Of attention in layers with a window, whose sizes are those of the others.
SAME_SIZES = {
    "swa_num_attention_heads": "num_attention_heads",
    "swa_num_key_value_heads": "num_key_value_heads",
    "swa_head_dim": "head_dim",
}
LOOPS = {
    "core_start": "loop_layer_index_start",
    "core_end": "loop_layer_index_end",
    "num_passes": "loop_num_passes",
    "gate_rank": "loop_gate_rank",
}


# Other names of keys in files; these win.
ALIASES = {
    "sliding_window": "sliding_window_size",
    "num_local_experts": "n_routed_experts",
    "sconv_kernel_size": "conv_kernel_size",
    "model_max_length": "max_position_embeddings",
    "intermediate_size": "moe_intermediate_size",
    "routed_scaling_factor": "route_scale",
}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file under one name each; loops may be in a section. The output is never tied.

    Packed experts are told by their tensors, and other ways of quantization where weights are read.
    """
    found = {name: raw[key] for key, name in ALIASES.items() if raw.get(key) is not None}
    loops = raw.get("loop_config")
    if isinstance(loops, Mapping):
        found |= {name: loops[key] for key, name in LOOPS.items() if key in loops}
    return {**raw, **found, "tie_word_embeddings": False, "quantization_config": None}


def renamed(name: str) -> str:
    """Return the name by which a tensor of a published file is read."""
    name = re.sub(r"^(model\.)?llm\.", "model.", name)
    name = re.sub(r"attn_res\.mlp_queries\.(\d+)$", r"layers.\1.mlp_input.query", name)
    # The first layer has none.
    return re.sub(
        r"attn_res\.attn_queries\.(\d+)$", lambda found: f"layers.{int(found[1]) + 1}.attention_input.query", name
    )


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every sixth layer have the window, unless the file names them."""
    config = with_gates(values, config)
    for key, same in SAME_SIZES.items():
        if values.get(key) is not None and values.integer(key, 1, 1 << 16) != getattr(config, same):
            raise UnsupportedModelError(f"{values.source}: {key} other than {same} is not supported")
    if config.hidden_size % LANES:
        raise values.error("hidden_size", f"a multiple of {LANES}")
    L = config.num_hidden_layers
    kinds = read_layer_types(values, L, (WHOLE, WINDOWED)) or [
        WINDOWED if (layer + 1) % 6 else WHOLE for layer in range(L)
    ]
    whole = tuple(layer for layer, kind in enumerate(kinds) if kind == WHOLE)
    if {*kinds[1:]} != {WHOLE, WINDOWED}:
        raise UnsupportedModelError(f"{values.source}: layer_types without {WHOLE} or {WINDOWED} are not supported")
    window = values.integer("sliding_window_size", 1, 1 << 24)
    loops, block = _read_loops(values, L)
    taps = values.integer("conv_kernel_size", 2, LONGEST)
    runs = len(loops.layer_runs(L))
    mixtures = BlockMixtures(
        layers=tuple(range(runs)),
        key_heads=config.num_key_value_heads,
        value_heads=1,
        key_dim=0,
        value_dim=config.hidden_size,
        taps=taps,
        loops=loops,
        layer_count=L,
        head_dim=config.head_dim,
        block=block,
        whole=whole,
        relative_size=values.integer("d_rel", 1, 256),
        reaches=(window, values.integer("rel_extent", 1, 1 << 24)),
        clip=values.number("qk_l2_clip_threshold", 1e-6, 1e9),
        relative_clip=values.number("rel_l2_clip_threshold", 1e-6, 1e9),
        growth=values.number("log_scaling_alpha", 0.0, 1e3),
        floor=values.integer("log_scaling_n_floor", 1, 1 << 40),
        gate_rank=values.integer("loop_gate_rank", 1, 1 << 16),
        beside_attention=True,
    )
    written = values.integer("unpadded_vocab_size", 1, MAX_VOCAB_SIZE)
    if written > config.vocab_size:
        raise values.error("unpadded_vocab_size", f"at most vocab_size, {config.vocab_size}")
    if (scores := values.optional_text("scoring_func")) not in (None, "sigmoid"):
        raise UnsupportedModelError(f"{values.source}: scoring_func {scores!r} is not supported")
    return replace(
        config,
        vocab_size=written,
        embedded_ids=config.vocab_size,
        rotary_dims=(0,) * L,
        sliding_windows=tuple(0 if layer in whole else window for layer in range(L)),
        logits_softcap=values.optional_number("final_logit_softcapping", 1e-3, 1e9),
        swiglu_caps=(values.number("mlp_gate_softcap", 1e-3, 1e9), values.number("mlp_up_softcap", 1e-3, 1e9)),
        experts=read_sigmoid_experts(values, range(L)),
        loops=loops,
        mixtures=mixtures,
    )


def _read_loops(values: ConfigValues, layers: int) -> tuple[Loops, int]:
    """Read the loops, and the layers of a block, of which they are whole ones."""
    block = values.integer("n_layers_per_attn_res_block", 1, layers)
    first = values.integer("loop_layer_index_start", 1, layers - 1)
    last = values.integer("loop_layer_index_end", first + 1, layers)
    for key, layer in (("loop_layer_index_start", first), ("loop_layer_index_end", last)):
        if layer % block:
            raise values.error(key, f"a multiple of n_layers_per_attn_res_block, {block}")
    count = values.integer("loop_num_passes", 1, 64)
    if count == 1:
        raise UnsupportedModelError(f"{values.source}: loop_num_passes 1 is not supported")
    return Loops(first, last, count), block


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: those before attention are the mixtures'; rows of gates and of their inputs alternate."""
    assert config.mixtures is not None and config.experts is not None
    before = mixture_linears(config.mixtures, config.num_attention_heads, LAYER, ATTENTION)
    order = (alternating_order(config.experts.intermediate_size),)
    found = []
    for each in decoder_linears(config, names):
        if each.name == "qkv_proj":
            found += before
        elif each.name == "expert_gate_up_proj":
            found.append(replace(each, order=order))
        elif each.layers is None and config.vocab_size < config.embedded_ids:
            part, _ = rows_of(each.sources[0], config.vocab_size, config.embedded_ids - config.vocab_size)
            found.append(replace(each, sources=(part,)))
        else:
            found.append(each)
    return found


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the mixtures' vectors."""
    assert config.mixtures is not None
    own = mixture_norms(config.mixtures, config.num_attention_heads, LAYER, ATTENTION, LAST)
    return [*decoder_norms(config, names), *own]


DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "vocab_size": 201024,
    "unpadded_vocab_size": 200058,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 1048576,
    "sliding_window_size": 1024,
    "d_rel": 16,
    "rel_extent": 1024,
    "log_scaling_n_floor": 8192,
    "log_scaling_alpha": 0.1,
    "qk_l2_clip_threshold": 22.627416997969522,
    "rel_l2_clip_threshold": 8.0,
    "n_layers_per_attn_res_block": 6,
    "mlp_gate_softcap": 4.0,
    "mlp_up_softcap": 25.0,
    "final_logit_softcapping": 30.0,
    "loop_layer_index_start": 6,
    "loop_layer_index_end": 18,
    "loop_num_passes": 3,
    "loop_gate_rank": 64,
    "conv_kernel_size": 4,
    "moe_intermediate_size": 1152,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "route_scale": 8.0,
}

INKLING_2_LOOP = Family(
    "Inkling2LoopForCausalLM",
    "inkling2_loop_text",
    "Inkling 2 Mini (26B)",
    "mixtures of blocks of layers, which run in loops, convolutions, biases by distance, sinks, experts by sigmoids,"
    " sliding window by layer",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    names={
        "intermediate_size": "moe_intermediate_size",
        "num_experts": "n_routed_experts",
        "routed_scaling_factor": "route_scale",
    },
    prepared=prepared,
    renamed=renamed,
)
