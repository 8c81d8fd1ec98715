"""Gemma 4 (text): Gemma 3's layers with heads of two sizes, shared keys and values, and embeddings for each layer.

Layers without a window have larger heads than the others, of which only the first channels turn. Values are normed, as
queries and keys are. The last layers of some models read the keys and values of the last layer of their kind before
them. In these models, each layer gets a small embedding of the token, mixed with a projection of the large one, through
a gate. In the mixture, experts stand beside the MLP of each layer, with norms of their own
(github.com/huggingface/transformers, models/gemma4 and gemma4_unified).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import MAX_HEAD_DIM, ModelConfig, read_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LAYER, ExpertNames, TensorNames, decoder_linears, decoder_norms
from tinychat.models.experts import ROUTER, Experts, read_experts
from tinychat.models.families.gemma import FOUR_NORMS
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_ropes_apart, ropes_apart
from tinychat.models.tensors import Linear, Norm
from tinychat.models.varied_layers import LAYER_INPUTS, VariedLayers

EXPERT = f"{LAYER}experts.{{}}."
EXPERTS = ExpertNames((f"{LAYER}router.proj",), (f"{EXPERT}gate_proj", f"{EXPERT}up_proj"), f"{EXPERT}down_proj")
TENSORS = replace(FOUR_NORMS, experts=EXPERTS)
_WINDOW, _ALL = "sliding_attention", "full_attention"


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Set the kinds of layers apart; a number of wide keys counts only where these are values, too."""
    return kinds_apart(raw if raw.get("attention_k_eq_v") else {**raw, "num_global_key_value_heads": None})


def kinds_apart(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with a rotary embedding for each kind of layer, and a last layer without a window."""
    kinds, found = raw.get("layer_types"), ropes_apart(raw)
    if isinstance(kinds, list) and kinds:
        found["layer_types"] = [*kinds[:-1], _ALL]
    # Newer files have the sizes of the larger heads here, by layer.
    if isinstance(others := raw.get("per_layer_config"), Mapping) and others:
        first, *rest = others.values()
        if isinstance(first, Mapping) and all(other == first for other in rest):
            keys = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
            found |= {key: first.get(name, raw.get(name)) for key, name in keys.items()}
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every sixth layer have the window, unless the file names them, and the last one has none."""
    if values.get("use_bidirectional_attention") == "all":
        raise UnsupportedModelError(f'{values.source}: use_bidirectional_attention "all" is not supported')
    count = config.num_hidden_layers
    windows = read_windows(values, count, lambda layer: (layer + 1) % 6 != 0 and layer + 1 < count)
    if all(windows) or not any(windows):
        raise UnsupportedModelError(
            f"{values.source}: layers of one kind only are not supported; expected {_WINDOW} and {_ALL}"
        )
    varied = _read_varied(values, config, windows)
    theta, scaling, sliding_theta = read_ropes_apart(values)
    return replace(
        with_attention_bias(values, config),
        rope_theta=theta,
        rope_scaling=scaling,
        sliding_rope_theta=sliding_theta,
        sliding_windows=windows,
        rotary_dims=tuple(config.head_dim if window else varied.wide_head_dim for window in windows),
        qk_norm="head",
        attention_scale=1.0,
        logits_softcap=values.optional_number("final_logit_softcapping", 1e-3, 1e9),
        embedding_multiplier=config.hidden_size**0.5,
        varied=varied,
        experts=_read_experts(values, varied),
    )


def _read_experts(values: ConfigValues, varied: VariedLayers) -> Experts | None:
    """Read the experts, which stand beside the MLP in all layers or in none."""
    if not values.flag("enable_moe_block", False):
        return None
    if varied.wide_mlps:
        raise UnsupportedModelError(f"{values.source}: enable_moe_block beside use_double_wide_mlp is not supported")
    return read_experts(values, "moe_intermediate_size", range(len(varied.sources)))


def _read_varied(values: ConfigValues, config: ModelConfig, windows: tuple[int, ...]) -> VariedLayers:
    heads, count = config.num_attention_heads, config.num_hidden_layers
    keys_as_values = values.flag("attention_k_eq_v", False)
    wide_heads = values.optional_integer("num_global_key_value_heads", 1, heads) or config.num_key_value_heads
    if heads % wide_heads:
        raise values.error("num_global_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = values.integer("global_head_dim", 4, MAX_HEAD_DIM)
    if head_dim % 2:
        raise values.error("global_head_dim", "an even number")
    sources = read_sources(values, windows)
    size = values.optional_integer("hidden_size_per_layer_input", 0, 1 << 16) or 0
    if size and values.get("vocab_size_per_layer_input") not in (None, config.vocab_size):
        raise values.error("vocab_size_per_layer_input", f"the vocab_size ({config.vocab_size})")
    return VariedLayers(
        wide=tuple(layer for layer in range(count) if not windows[layer]),
        wide_head_dim=head_dim,
        wide_key_value_heads=wide_heads,
        keys_as_values=keys_as_values,
        sources=sources,
        wide_mlps=tuple(layer for layer in range(count) if sources[layer] != layer)
        if values.flag("use_double_wide_mlp", False)
        else (),
        input_size=size,
        input_ids=config.vocab_size if size else 0,
    )


def read_sources(values: ConfigValues, windows: tuple[int, ...]) -> tuple[int, ...]:
    """Read `VariedLayers.sources`: the last layers read the last layer of their kind that has keys of its own."""
    first = len(windows) - (values.optional_integer("num_kv_shared_layers", 0, len(windows) - 1) or 0)
    last = {bool(window): layer for layer, window in enumerate(windows[:first])}
    if len(last) < len({*map(bool, windows)}):
        raise values.error("num_kv_shared_layers", "few enough that a layer of each kind has its own")
    return tuple(layer if layer < first else last[bool(window)] for layer, window in enumerate(windows))


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: those of wide heads and wide MLPs are apart, and those of layers without own keys."""
    varied, D, H = _varied(config), config.hidden_size, config.num_attention_heads
    q, k, v = names.qkv
    embedding, *others = decoder_linears(config, names)
    found = [embedding]
    narrow = "", varied.narrow, config.num_key_value_heads, config.head_dim, v
    wide = "wide_", varied.wide, varied.wide_key_value_heads, varied.wide_head_dim, k if varied.keys_as_values else v
    for kind, layers, groups, size, values in (narrow, wide) if varied.wide else (narrow,):
        own, readers = varied.owners(layers), varied.readers(layers)
        rows = (H * size, groups * size, groups * size)
        if own:
            found.append(Linear(f"{kind}qkv_proj", (q, k, values), rows, D, len(own), config.qkv_bias, at=own))
        if readers:
            found.append(Linear(f"{kind}query_proj", (q,), rows[:1], D, len(readers), config.qkv_bias, at=readers))
        found.append(Linear(f"{kind}o_proj", (names.o,), (D,), H * size, len(layers), config.o_bias, at=layers))
    for kind, layers, F in (
        ("", varied.narrow_mlps, config.intermediate_size),
        ("wide_", varied.wide_mlps, 2 * config.intermediate_size),
    ):
        if layers:
            found.append(Linear(f"{kind}gate_up_proj", names.gate_up, (F, F), D, len(layers), at=layers))
            found.append(Linear(f"{kind}down_proj", (names.down,), (D,), F, len(layers), at=layers))
    found += [each for each in others if each.name in (ROUTER, "lm_head") or each.experts]
    return found + _input_linears(config, varied)


def _input_linears(config: ModelConfig, varied: VariedLayers) -> list[Linear]:
    D, L, P = config.hidden_size, config.num_hidden_layers, varied.input_size
    if not P:
        return []
    # The two halves of a layer's input are added, and the sum multiplied by the square root of a half.
    rows, scale = (varied.input_ids * L,), (P / 2) ** 0.5
    table = Linear(LAYER_INPUTS, ("model.embed_tokens_per_layer",), rows, P, None, scale=scale, cut=L)
    return [
        *([table] if varied.input_ids else []),
        Linear("inputs_proj", ("model.per_layer_model_projection",), (L * P,), D, None, scale=D**-0.5),
        Linear("input_gate", (f"{LAYER}per_layer_input_gate",), (P,), D, L),
        Linear("input_proj", (f"{LAYER}per_layer_projection",), (D,), P, L),
    ]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms: those of wide heads are apart; values are normed without gains."""
    varied, D, L = _varied(config), config.hidden_size, config.num_hidden_layers
    found = [norm for norm in decoder_norms(config, names) if norm.name not in ("q_norm", "k_norm")]
    for kind, layers, size in (("", varied.narrow, config.head_dim), ("wide_", varied.wide, varied.wide_head_dim)):
        if not layers:
            continue
        own = varied.owners(layers)
        found.append(Norm(f"{kind}q_norm", f"{ATTENTION}q_norm", size, len(layers), padded=False, at=layers))
        if own:
            found.append(Norm(f"{kind}k_norm", f"{ATTENTION}k_norm", size, len(own), padded=False, at=own))
    if config.experts:
        found += [
            Norm(name, f"{LAYER}{source}_layernorm_{number}", D, L)
            for name, source, number in (
                ("mlp_norm", "post_feedforward", 1),
                ("before_experts", "pre_feedforward", 2),
                ("experts_norm", "post_feedforward", 2),
            )
        ]
        found.append(Norm("router_norm", f"{LAYER}router.scale", D, L, scale=D**-0.5))
        found.append(
            Norm("expert_scale", f"{LAYER}router.per_expert_scale", config.experts.num_experts, L, padded=False)
        )
    if not config.altup:
        found.append(Norm("layer_scale", f"{LAYER}layer_scalar", 1, L, padded=False))
    if P := varied.input_size:
        projection, scale = "model.per_layer_projection_norm", 0.5**0.5 if varied.input_ids else 1.0
        found.append(Norm("inputs_norm", projection, P, None, padded=False, scale=scale))
        found.append(Norm("input_norm", f"{LAYER}post_per_layer_input_norm", D, L))
    return found


def _varied(config: ModelConfig) -> VariedLayers:
    assert config.varied is not None
    return config.varied


DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 256,
    f"{_WINDOW}_rope": {"rope_type": "default", "rope_theta": 10000.0},
    f"{_ALL}_rope": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
# The same without embeddings for each layer.
UNIFIED_DEFAULTS = DEFAULTS | {"max_position_embeddings": 262144, "sliding_window": 1024}
del UNIFIED_DEFAULTS["hidden_size_per_layer_input"]

GEMMA4 = Family(
    "Gemma4ForCausalLM",
    "gemma4_text",
    "Gemma 4 (text)",
    "heads of two sizes, shared keys and values, embeddings for each layer, experts beside MLPs, windows, soft cap",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    names={"hidden_act": "hidden_activation", "num_experts_per_tok": "top_k_experts"},
    prepared=prepared,
)
GEMMA4_UNIFIED = Family(
    "Gemma4UnifiedForCausalLM",
    "gemma4_unified_text",
    "Gemma 4 12B (text)",
    "heads of two sizes, keys as values, windows by layer, soft cap",
    UNIFIED_DEFAULTS,
    read,
    FOUR_NORMS,
    linears,
    norms,
    names={"hidden_act": "hidden_activation"},
    prepared=prepared,
)
