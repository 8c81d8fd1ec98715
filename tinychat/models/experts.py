"""Mixtures of experts: an MLP of which each token passes only the parts, the experts, that a router chooses.

The router gives each expert a probability; the token's output is the sum of what the likeliest experts give, times
their probabilities (Shazeer et al., 2017, https://arxiv.org/abs/1701.06538).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.models.tensors import Linear

if TYPE_CHECKING:
    from tinychat.models.config_values import ConfigValues

ROUTER = "router"
MOST = 4096  # experts of a layer


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one model.

    Attributes
    ----------
    num_experts : int
        Of each layer that has any.
    num_experts_per_tok : int
        How many are chosen for each token.
    intermediate_size : int
        Of each expert.
    layers : tuple of int
        Which layers have experts; the others have an MLP as any model.
    norm_topk_prob : bool
        Whether the probabilities of the chosen experts are made to sum up to 1.
    shared_intermediate_size : int
        Of an expert that all tokens pass, besides; 0 where there is none. A gate of its own multiplies what it gives.
    bias : bool
        Whether router and experts have biases.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    layers: tuple[int, ...]
    norm_topk_prob: bool = True
    shared_intermediate_size: int = 0
    bias: bool = False

    def dense_layers(self, num_hidden_layers: int) -> tuple[int, ...]:
        """Return which of the layers have no experts."""
        return tuple(sorted({*range(num_hidden_layers)} - {*self.layers}))


def with_one_name(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with ``num_experts`` by this name: transformers has another for it besides."""
    other = raw.get("num_local_experts")
    return raw if other is None or raw.get("num_experts") is not None else {**raw, "num_experts": other}


def read_experts(values: ConfigValues, size: str, layers: Sequence[int]) -> Experts:
    """Read what all families say of their experts; `size` is what they call how wide one is."""
    num_experts = values.integer("num_experts", 1, MOST)
    return Experts(
        num_experts=num_experts,
        num_experts_per_tok=values.integer("num_experts_per_tok", 1, num_experts),
        intermediate_size=values.integer(size, 1, 1 << 22),
        layers=tuple(layers),
    )


def expert_linears(
    experts: Experts, hidden_size: int, router: Sequence[str], gate_up: Sequence[str], down: str, shared: str = ""
) -> list[Linear]:
    """List the linears of layers with experts.

    Parameters
    ----------
    experts : Experts
    hidden_size : int
    router : sequence of str
        The checkpoint's name of the router; then, where there is a shared expert, of its gate.
    gate_up, down : sequence of str, str
        The checkpoint's names, with ``{}`` for the layer and for the expert.
    shared : str
        What the names of the shared expert's linears begin with.
    """
    D, F, S = hidden_size, experts.intermediate_size, experts.shared_intermediate_size
    L, E = len(experts.layers), experts.num_experts
    rows = (F,) * 2 if len(gate_up) == 2 else (2 * F,)
    bias, at = experts.bias, experts.layers
    found = [
        Linear(ROUTER, tuple(router), (E, 1)[: len(router)], D, L, bias, at=at),
        Linear("expert_gate_up_proj", tuple(gate_up), rows, D, L, bias, experts=E, at=at),
        Linear("expert_down_proj", (down,), (D,), F, L, bias, experts=E, at=at),
    ]
    if S:
        gate_and_up = (f"{shared}gate_proj", f"{shared}up_proj")
        found.append(Linear("shared_gate_up_proj", gate_and_up, (S, S), D, L, at=at))
        found.append(Linear("shared_down_proj", (f"{shared}down_proj",), (D,), S, L, at=at))
    return found
