"""Mixtures of experts: an MLP of which each token passes only the parts, the experts, that a router chooses.

The router gives each expert a probability; the token's output is the sum of the outputs of the likeliest experts, times
their probabilities (Shazeer et al., 2017, https://arxiv.org/abs/1701.06538).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinychat.models.config_values import ConfigValues

ROUTER = "router"
# Of a router that is an MLP: the linears before the last.
ROUTER_IN, ROUTER_INNER = "router_in_proj", ("router_fc1", "router_fc2")
MOST = 4096  # experts of a layer
# The vector that is added to what the experts of a layer give, and its scale, which is 1.
EXPERTS_SHIFT, EXPERTS_SCALE = "experts_shift", "experts_scale"


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one model."""

    num_experts: int  # of each layer that has any
    num_experts_per_tok: int  # chosen for each token
    intermediate_size: int  # of each expert
    layers: tuple[int, ...]  # those that have experts; the others have an MLP as any model
    norm_topk_prob: bool = True  # the probabilities of the chosen experts are made to sum up to 1
    shared_intermediate_size: int = 0  # of an expert that all tokens pass; 0: there is none
    shared_gate: bool = False  # that expert has a gate, the last row of the router
    bias: bool = False  # biases of router and experts
    biased: bool = False  # each expert has a bias that counts for the choice alone
    by_logits: bool = False  # they are chosen by the router's logits, to which biases are added, not by probabilities
    sigmoid: bool = False  # each expert has a probability of its own; they do not sum up to 1
    mixing_reach: float = 0.0  # of SparseMixer: logits count that differ by that share of the larger one; 0: all do
    scale: float = 1.0  # of what the chosen experts give
    n_group: int = 1  # groups of experts, of equal size
    topk_group: int = 1  # from how many of them the experts of a token are chosen
    latent_size: int = 0  # of the vector that experts without gates read and give; 0: the residual stream's
    router_size: int = 0  # of the vector that a router's MLP reads, carried from layer to layer; 0: it is a linear
    shifted: bool = False  # a vector is added to what the experts of a layer give (Nomic BERT)
    can_skip: bool = False  # the router may choose none
    limits: tuple[float, ...] = ()  # by layer of them, bounds of SiLU of gates and what these let through (Ling 3.0)
    shared_limits: tuple[float, ...] = ()  # the same of the expert that all tokens pass
    early: bool = False  # the router reads the residual stream before attention, which is not normed (SmallThinker)

    @property
    def choices(self) -> int:
        """Number of rows of the router: of the experts and, last, of none."""
        return self.num_experts + self.can_skip


def with_num_experts(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with ``num_experts``, which transformers also calls ``num_local_experts``."""
    other = raw.get("num_local_experts")
    return raw if other is None or raw.get("num_experts") is not None else {**raw, "num_experts": other}


def read_experts(values: ConfigValues, size: str, layers: Sequence[int], norm_topk_prob: bool | None = None) -> Experts:
    """Read the values that all families have of experts; `size` is the key of an expert's width.

    norm_topk_prob : what the key of that name is in files that lack it; None: no file has it.
    """
    num_experts = values.integer("num_experts", 1, MOST)
    return Experts(
        num_experts=num_experts,
        num_experts_per_tok=values.integer("num_experts_per_tok", 1, num_experts),
        intermediate_size=values.integer(size, 1, 1 << 22),
        layers=tuple(layers),
        norm_topk_prob=True if norm_topk_prob is None else values.flag("norm_topk_prob", norm_topk_prob),
    )


def read_layers_behind_dense(values: ConfigValues, layers: int) -> range:
    """Read which layers have experts: all but the first ``first_k_dense_replace``."""
    return range(values.integer("first_k_dense_replace", 0, layers - 1), layers)


def read_sparse_layers(values: ConfigValues, default: Sequence[str]) -> list[int]:
    """Read which layers have experts by ``mlp_layer_types``, one name per layer."""
    types = values.get("mlp_layer_types") or default
    types = types if isinstance(types, list) else []
    layers = [layer for layer, name in enumerate(types) if name == "sparse"]
    if not layers or len(types) != len(default) or any(name not in ("sparse", "dense") for name in types):
        raise values.error("mlp_layer_types", f"a list of {len(default)} names, sparse or dense, one of them sparse")
    return layers


def with_shared(values: ConfigValues, experts: Experts) -> Experts:
    """Return experts beside ``n_shared_experts`` more that all tokens pass, without a gate: one as wide as those."""
    shared = experts.intermediate_size * values.integer("n_shared_experts", 1, MOST)
    return replace(experts, shared_intermediate_size=shared)


def with_shared_expert(values: ConfigValues, experts: Experts, gated: bool = False) -> Experts:
    """Return experts beside one more that all tokens pass, of a width of its own, perhaps behind a gate."""
    size = values.integer("shared_expert_intermediate_size", 1, 1 << 22)
    return replace(experts, shared_intermediate_size=size, shared_gate=gated)


def read_sigmoid_experts(values: ConfigValues, layers: Sequence[int], size: str = "moe_intermediate_size") -> Experts:
    """Read experts of sigmoid routers."""
    experts = read_experts(values, size, layers, norm_topk_prob=True)
    n_group = values.optional_integer("n_group", 1, MOST) or 1
    # Two experts stand for their group.
    if n_group > 1 and (experts.num_experts % n_group or experts.num_experts < 2 * n_group):
        raise values.error("n_group", f"a number of groups of two or more, of {experts.num_experts} experts")
    topk_group = values.integer("topk_group", 1, n_group) if n_group > 1 else 1
    if experts.num_experts_per_tok > topk_group * experts.num_experts // n_group:
        raise values.error("topk_group", f"groups of {experts.num_experts_per_tok} experts or more together")
    return replace(
        experts,
        biased=True,
        sigmoid=True,
        n_group=n_group,
        topk_group=topk_group,
        scale=values.optional_number("routed_scaling_factor", 1e-6, 1e6) or 1.0,
    )
