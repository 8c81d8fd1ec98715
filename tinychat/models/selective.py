"""Mamba: a layer whose past is a vector for each channel, its state, instead of keys and values.

Of each position, each number of a channel's state first forgets a share, which is its own, then adds the product of the
position's value (x) and key (B), times a step; the output is what the state holds for the query (C), and a share of the
value (Gu and Dao, 2023, https://arxiv.org/abs/2312.00752). Values pass a short convolution before. Steps, keys and
queries are linears of them; steps are of a vector of low rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tinychat.models.config_values import ConfigValues
from tinychat.models.mamba import STEPS
from tinychat.models.state_layers import LANES, LONGEST, StateLayers, read_dim
from tinychat.models.tensors import Linear, Norm

# Of the vector that steps are linears of, keys and queries: few weights that decide much.
LOW = "mamba_low_proj"
_MOST_RANK = 4096


@dataclass(frozen=True, slots=True)
class SelectiveScan(StateLayers):
    """The Mamba layers of one model: one head of values, whose keys are not convolved; `key_dim` is a state's size."""

    step_rank: int = field(kw_only=True)  # of the vector that steps are linears of
    bias: bool = field(default=False, kw_only=True)  # of the first and the last linear


def read_selective(values: ConfigValues, layers: Sequence[int], width: int) -> SelectiveScan:
    """Read the values of Mamba; `width` is the model's."""
    values.require(mamba_conv_bias=True)
    inner = values.integer("mamba_expand", 1, 16) * width
    rank = -(-width // 16) if values.get("mamba_dt_rank") == "auto" else values.integer("mamba_dt_rank", 1, _MOST_RANK)
    for key, size in (("hidden_size", inner), ("mamba_dt_rank", rank)):
        if size % LANES:
            raise values.error(key, f"a number that makes {size} a multiple of {LANES}")
    return SelectiveScan(
        layers=tuple(layers),
        key_heads=0,
        value_heads=1,
        key_dim=read_dim(values, "mamba_d_state"),
        value_dim=inner,
        taps=values.integer("mamba_d_conv", 2, LONGEST),
        step_rank=rank,
        bias=values.flag("mamba_proj_bias", False),
    )


def selective_linears(net: SelectiveScan, hidden_size: int, prefix: str) -> list[Linear]:
    """List the linear layers: values and gates; steps' vector, keys and queries; steps; the output."""
    inner, rank = net.value_size, net.step_rank
    found = [
        Linear("mamba_in_proj", (f"{prefix}in_proj",), (2 * inner,), hidden_size, None, net.bias),
        Linear(LOW, (f"{prefix}x_proj",), (rank + 2 * net.key_dim,), inner, None),
        Linear(STEPS, (f"{prefix}dt_proj",), (inner,), rank, None, bias=True),
        Linear("mamba_out_proj", (f"{prefix}out_proj",), (hidden_size,), inner, None, net.bias),
    ]
    return [replace(each, layers=len(net.layers), at=net.layers) for each in found]


def selective_norms(net: SelectiveScan, prefix: str) -> list[Norm]:
    """List the norms of steps, keys and queries, and the other vectors; decays are exponentials of the checkpoint's."""
    inner, d = net.value_size, net.key_dim
    sizes = {"dt_layernorm": net.step_rank, "b_layernorm": d, "c_layernorm": d, "D": inner, "conv1d.bias": inner}
    names = "mamba_steps_norm", "mamba_keys_norm", "mamba_queries_norm", "mamba_D", "mamba_taps_bias"
    found = [Norm(name, f"{prefix}{source}", size, 0) for name, (source, size) in zip(names, sizes.items())]
    found.append(Norm("mamba_decays", f"{prefix}A_log", d * inner, 0, flattened=True, function="exp"))
    found.append(Norm("mamba_taps", f"{prefix}conv1d", net.taps * inner, 0, flattened=True))
    return [replace(each, layers=len(net.layers), at=net.layers, padded=False) for each in found]
