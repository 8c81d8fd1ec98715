"""Mixtures of experts: an MLP of which each token passes only the parts, the experts, that a router chooses.

The router gives each expert a probability; the token's output is the sum of the outputs of the likeliest experts, times
their probabilities (Shazeer et al., 2017, https://arxiv.org/abs/1701.06538).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config_values import ConfigValues

ROUTER = "router"
MOST = 4096  # experts of a layer


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one model."""

    num_experts: int  # of each layer that has any
    num_experts_per_tok: int  # chosen for each token
    intermediate_size: int  # of each expert
    layers: tuple[int, ...]  # those that have experts; the others have an MLP as any model
    norm_topk_prob: bool = True  # the probabilities of the chosen experts are made to sum up to 1
    shared_intermediate_size: int = 0  # of an expert that all tokens pass, times a gate of its own; 0: there is none
    bias: bool = False  # biases of router and experts
    sigmoid: bool = False  # each expert has a probability of its own, and a bias that counts for the choice alone
    scale: float = 1.0  # of what the chosen experts give

    def dense_layers(self, num_hidden_layers: int) -> tuple[int, ...]:
        """Return the layers that have no experts."""
        return tuple(layer for layer in range(num_hidden_layers) if layer not in self.layers)


def with_num_experts(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with ``num_experts``, which transformers also calls ``num_local_experts``."""
    other = raw.get("num_local_experts")
    return raw if other is None or raw.get("num_experts") is not None else {**raw, "num_experts": other}


def read_experts(values: ConfigValues, size: str, layers: Sequence[int]) -> Experts:
    """Read the values that all families have of experts; `size` is the key of an expert's width."""
    num_experts = values.integer("num_experts", 1, MOST)
    return Experts(
        num_experts=num_experts,
        num_experts_per_tok=values.integer("num_experts_per_tok", 1, num_experts),
        intermediate_size=values.integer(size, 1, 1 << 22),
        layers=tuple(layers),
    )


def read_sigmoid_experts(values: ConfigValues, layers: Sequence[int], size: str = "moe_intermediate_size") -> Experts:
    """Read experts of sigmoid routers; those in several groups, of which only some are looked at, are refused."""
    if (values.optional_integer("n_group", 1, MOST) or 1) > 1:
        raise UnsupportedModelError(f"{values.source}: n_group above 1 is not supported")
    return replace(
        read_experts(values, size, layers),
        norm_topk_prob=values.flag("norm_topk_prob", True),
        sigmoid=True,
        scale=values.optional_number("routed_scaling_factor", 1e-6, 1e6) or 1.0,
    )
