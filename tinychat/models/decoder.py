"""Linear layers and norms of a decoder, from its configuration and the names of its tensors in the checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from tinychat.models.config import ModelConfig
from tinychat.models.experts import EXPERTS_SCALE, EXPERTS_SHIFT, ROUTER, ROUTER_IN, ROUTER_INNER, Experts
from tinychat.models.mamba import mamba_linears, mamba_norms
from tinychat.models.selective import selective_linears, selective_norms
from tinychat.models.tensors import Linear, Norm, Order, halves_order, split_order

LAYER = "model.layers.{}."
ATTENTION, MLP = f"{LAYER}self_attn.", f"{LAYER}mlp."
EXPERT = f"{MLP}experts.{{}}."
HEAD_NORMS = {"q_norm": f"{ATTENTION}q_norm", "k_norm": f"{ATTENTION}k_norm"}
LLAMA_NORMS = {
    "input_layernorm": f"{LAYER}input_layernorm",
    "post_attention_layernorm": f"{LAYER}post_attention_layernorm",
    "norm": "model.norm",
    **HEAD_NORMS,
}
ROTATED_GAINS = {"q_norm": "q_gains", "k_norm": "k_gains"}
# What adds to the residual stream, and the norms behind it, where there are any.
BRANCHES = ("o_proj", "down_proj", "expert_down_proj", "shared_down_proj", "mamba_out_proj")
NORMS_BEHIND = ("post_self_attn_layernorm", "post_mlp_layernorm")
# Of a gate for each head of attention: few weights that decide much, like a router's.
HEAD_GATES = "head_gates_proj"
# Begins the names of what layers have whose number of query heads is `ModelConfig.other_heads`.
OTHER = "other_"
OTHER_HEAD_GATES = f"{OTHER}{HEAD_GATES}"


def grouped_rows(config: ModelConfig) -> Order:
    """Order of a fused projection in which the queries of each group are followed by their key and value."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    return (split_order(groups, heads // groups, config.head_dim),)


def neighbours_rows(config: ModelConfig) -> Order:
    """Order of queries, keys and values of which neighbouring channels are rotated together."""
    d, rotary_dim = config.head_dim, config.rotary_dim
    queries = halves_order(config.num_attention_heads, d, rotary_dim)
    return queries, halves_order(config.num_key_value_heads, d, rotary_dim), None


def fused_neighbours_rows(config: ModelConfig) -> Order:
    """Order of a fused projection of which neighbouring channels of queries and keys are rotated together."""
    heads, groups, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return (halves_order(heads + groups, d, config.rotary_dim, others=groups * d),)


@dataclass(frozen=True)
class RouterMlpNames:
    """Names of what stands before a router that is the last linear of an MLP."""

    in_proj: str
    fc1: str
    fc2: str
    norm: str  # of the vector that `in_proj` adds to
    carry: str  # what multiplies the vector of the layer before


@dataclass(frozen=True)
class ExpertNames:
    """Names of a mixture's tensors; ``{}`` is the layer, a second one the expert. DeepSeek-V3's by default.

    `router` is followed by the gate of the shared expert, if it has one; its linears begin with `shared`.
    `bias` is that of the choice, `shift` that of all experts' sum; `latent` are the linears before and behind them.
    """

    router: tuple[str, ...] = (f"{MLP}gate",)
    gate_up: tuple[str, ...] = (f"{EXPERT}gate_proj", f"{EXPERT}up_proj")
    down: str = f"{EXPERT}down_proj"
    shared: str = f"{MLP}shared_experts."
    bias: str = f"{MLP}gate.e_score_correction_bias"
    latent: tuple[str, str] = ("", "")
    router_mlp: RouterMlpNames | None = None
    shift: str = ""


@dataclass(frozen=True)
class TensorNames:
    """Names of a decoder's tensors in the checkpoint, without ``.weight``; ``{}`` is the layer. Llama's by default.

    One name of `qkv` or `gate_up` is a fused tensor; four of `qkv` have gates of attention behind queries; an MLP
    without gates has `up` alone in `gate_up`. `norms` has the
    checkpoint's name by that of the program, in the order of the model folder. `qkv_order` gives `Linear.order`.
    """

    embed: str = "model.embed_tokens"
    qkv: tuple[str, ...] = (f"{ATTENTION}q_proj", f"{ATTENTION}k_proj", f"{ATTENTION}v_proj")
    o: str = f"{ATTENTION}o_proj"
    head_gates: str = f"{ATTENTION}gate_proj"
    sinks: str = f"{ATTENTION}sinks"
    gate_up: tuple[str, ...] = (f"{MLP}gate_proj", f"{MLP}up_proj")
    down: str = f"{MLP}down_proj"
    lm_head: str = "lm_head"
    norms: Mapping[str, str] = field(default_factory=LLAMA_NORMS.copy)
    norm_bias: bool = False
    norm_offset: float = 0.0  # gains of norms are this and the checkpoint's numbers
    lm_head_bias: bool = False
    mamba: str = f"{LAYER}mamba."  # begins the names of a state's tensors
    qkv_order: Callable[[ModelConfig], Order] = lambda config: ()
    experts: ExpertNames | None = None


def layer_norms(attention: str, mlp: str, last: str) -> dict[str, str]:
    """Return `TensorNames.norms` of a model with one norm before attention, one before the MLP, and the last."""
    return {"input_layernorm": attention, "post_attention_layernorm": mlp, "norm": last}


def decoder_linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers with their multipliers; an embedding counts as one, tied models have no ``lm_head``."""
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    mlp_layers, mlp_at = len(config.dense_layers), _some(config, config.dense_layers)
    found = [
        Linear("embed_tokens", (names.embed,), (V,), D, None),
        *chain(*(_attention_linears(config, names, *kind) for kind in attention_kinds(config))),
    ]
    if mlp_layers:
        up = "gate_up_proj" if config.gated else "up_proj"
        rows = (F,) * len(names.gate_up) if not config.gated or len(names.gate_up) == 2 else (2 * F,)
        found.append(Linear(up, names.gate_up, rows, D, mlp_layers, config.mlp_bias, at=mlp_at))
        found.append(Linear("down_proj", (names.down,), (D,), F, mlp_layers, config.mlp_bias, at=mlp_at))
    found += _expert_linears(config, names.experts)
    if not config.tie_word_embeddings:
        bias, unit_rows = names.lm_head_bias, config.unit_outputs
        found.append(Linear("lm_head", (names.lm_head,), (V,), D, None, bias, unit_rows=unit_rows))
    if config.mamba:
        found += mamba_linears(config.mamba, D, names.mamba)
    if config.selective:
        found += selective_linears(config.selective, D, names.mamba)
    # A norm behind a branch would take its multiplier out again, and has it itself.
    branches = BRANCHES if NORMS_BEHIND[0] not in names.norms else ()
    multipliers, factors = dict.fromkeys(branches, config.residual_multiplier), dict(config.linear_multipliers)
    return [
        replace(each, scale=each.scale * multipliers.get(each.name, 1.0), scales=factors.get(each.name, ()))
        for each in found
    ]


def attention_kinds(config: ModelConfig) -> list[tuple[str, int, tuple[int, ...]]]:
    """List the kinds of attention by their number of query heads: how names begin, that number, the layers."""
    first = "", config.num_attention_heads, config.first_heads_at
    return [first, (OTHER, config.other_heads, config.other_heads_at)] if config.other_heads else [first]


def attention_at(config: ModelConfig) -> tuple[int, ...]:
    """Return the layers that have attention; none if all do."""
    return _some(config, config.attention_layers)


def _some(config: ModelConfig, layers: tuple[int, ...]) -> tuple[int, ...]:
    """Return layers as `Linear.at` has them: none if they are all."""
    return layers if len(layers) < config.num_hidden_layers else ()


def _attention_linears(
    config: ModelConfig, names: TensorNames, kind: str, heads: int, layers: tuple[int, ...]
) -> list[Linear]:
    D, A, at = config.hidden_size, len(layers), _some(config, layers)
    queries, keys = heads * config.head_dim, config.num_key_value_heads * config.head_dim
    rows: tuple[int, ...] = (queries, keys, keys) if len(names.qkv) == 3 else (queries + 2 * keys,)
    if config.gated_attention:
        rows = (2 * queries, keys, keys) if len(names.qkv) == 3 else (queries, queries, keys, keys)
    order = names.qkv_order(config)
    found = [
        Linear(f"{kind}qkv_proj", names.qkv, rows, D, A, config.qkv_bias, order=order, at=at),
        Linear(f"{kind}o_proj", (names.o,), (D,), queries, A, config.o_bias, at=at),
    ]
    if config.gated_heads:
        found.append(Linear(f"{kind}{HEAD_GATES}", (names.head_gates,), (heads,), D, A, at=at))
    return found


def _expert_linears(config: ModelConfig, names: ExpertNames | None) -> list[Linear]:
    experts = config.experts
    if experts is None or names is None:
        return []
    D, F, S, E = config.hidden_size, experts.intermediate_size, experts.shared_intermediate_size, experts.num_experts
    L, bias, at = len(experts.layers), experts.bias, experts.layers
    router = names.router if experts.shared_gate else names.router[:1]
    rows, gates = (F,) * len(names.gate_up), "gate_" if config.gated else ""
    if config.gated and len(rows) == 1:
        rows = (2 * F,)
    width = experts.latent_size or D
    found = [
        Linear(ROUTER, router, (experts.choices, 1)[: len(router)], experts.router_size or D, L, bias, at=at),
        Linear(f"expert_{gates}up_proj", names.gate_up, rows, width, L, bias, experts=E, at=at),
        Linear("expert_down_proj", (names.down,), (width,), F, L, bias, experts=E, at=at, scale=experts.scale),
    ]
    if mlp := names.router_mlp:
        R, inner = experts.router_size, zip(ROUTER_INNER, (mlp.fc1, mlp.fc2))
        found.append(Linear(ROUTER_IN, (mlp.in_proj,), (R,), D, L, bias=True, at=at))
        found += (Linear(name, (source,), (R,), R, L, bias=True, at=at) for name, source in inner)
    if experts.latent_size:
        before, behind = names.latent
        found.append(Linear("experts_in_proj", (before,), (width,), D, L, bias, at=at))
        found.append(Linear("experts_out_proj", (behind,), (D,), width, L, bias, at=at))
    if S:
        up = tuple(f"{names.shared}{part}_proj" for part in ("gate", "up")[0 if config.gated else 1 :])
        found.append(Linear(f"shared_{gates}up_proj", up, (S,) * len(up), D, L, at=at))
        found.append(Linear("shared_down_proj", (f"{names.shared}down_proj",), (D,), S, L, at=at))
    return found


def decoder_norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, those of queries and keys only where the model has them, attention's sinks, states' vectors."""
    found, L = list[Norm](), config.num_hidden_layers
    # The last norm multiplies the logits, those behind a branch what it adds.
    scales = {"norm": config.logits_multiplier} | dict.fromkeys(NORMS_BEHIND, config.residual_multiplier)
    at = {}
    if config.mlp_alone:
        others = tuple(layer for layer in range(L) if layer not in config.mlp_alone)
        at = {"input_layernorm": others, "post_attention_layernorm": config.mlp_alone}
    for name, source in names.norms.items():
        if name not in ROTATED_GAINS:
            layers, scale = at.get(name, ()), scales.get(name, 1.0)
            count = (len(layers) or L) if "{}" in source else None
            norm = Norm(name, source, config.hidden_size, count, bias=names.norm_bias, scale=scale, at=layers)
            found.append(norm)
        elif config.qk_norm is not None:
            found += chain(*(_head_norms(config, name, source, *kind) for kind in attention_kinds(config)))
    found = [replace(each, offset=names.norm_offset) for each in found]
    if config.experts and names.experts:
        found += _experts_norms(config.experts, names.experts, config.hidden_size)
    if config.sinks:
        size = config.num_attention_heads
        found.append(Norm("sinks", names.sinks, size, L, padded=False))
    if config.mamba:
        found += mamba_norms(config.mamba, names.mamba)
    if config.selective:
        found += selective_norms(config.selective, names.mamba)
    return found


def _experts_norms(experts: Experts, names: ExpertNames, size: int) -> list[Norm]:
    found, L, at = [], len(experts.layers), experts.layers
    if experts.shifted:
        found = [Norm(EXPERTS_SHIFT, names.shift, size, L, at=at), Norm(EXPERTS_SCALE, "", size, L, at=at)]
    if experts.biased:
        found.append(Norm("router_bias", names.bias, experts.choices, L, padded=False, at=at))
    if mlp := names.router_mlp:
        found.append(Norm("router_mlp_norm", mlp.norm, experts.router_size, L, at=at))
        if at[1:]:
            # Nothing is carried to the first router.
            found.append(Norm("router_carry", mlp.carry, experts.router_size, L - 1, padded=False, at=at[1:]))
    return found


def _head_norms(
    config: ModelConfig, name: str, source: str, kind: str, heads: int, layers: tuple[int, ...]
) -> list[Norm]:
    of_all = {"q_norm": heads, "k_norm": config.num_key_value_heads}[name]
    size = config.head_dim * (of_all if config.qk_norm in ("width", "heads") else 1)
    A, at = len(layers), _some(config, layers)
    if config.qk_norm != "rotated":
        return [Norm(f"{kind}{name}", source, size, A, padded=False, at=at)]
    # A rotation keeps lengths: only the gains have to stand behind it.
    lengths = Norm(f"{kind}{name}", "", size, A, padded=False, at=at)
    return [lengths, Norm(f"{kind}{ROTATED_GAINS[name]}", source, size, A, padded=False, at=at)]
