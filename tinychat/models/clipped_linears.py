"""Linears whose inputs and outputs are brought between bounds: those of the vision tower of Gemma 4 E2B and E4B.

Each has bounds of its own, also where several read the same rows.
"""

from tinychat.models.config import ModelConfig
from tinychat.models.decoder import TensorNames
from tinychat.models.tensors import Linear, Norm

# Ends the name of a linear's tensor within the module that has its bounds, and names these.
WITHIN, BOUNDS = ".linear", ".bounds"
# The tensors that hold them: the least input, the largest, the least output, the largest.
PARTS = ("input_min", "input_max", "output_min", "output_max")


def bounds_of(name: str) -> str:
    """Return the name of a linear's bounds in a model folder."""
    return f"{name.removesuffix('_proj')}_bounds"


def clipped_linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linears of all layers, of which none are joined."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    named = zip(("q", "k", "v", "o", "gate", "up", "down"), (*names.qkv, names.o, *names.gate_up, names.down))
    sizes = ((queries, D), (keys, D), (keys, D), (D, queries), (F, D), (F, D), (D, F))
    orders = (*((order,) for order in names.qkv_order(config)), (), (), (), ())
    return [
        Linear(f"{name}_proj", (source,), (rows,), columns, L, order=order)
        for (name, source), (rows, columns), order in zip(named, sizes, orders, strict=True)
    ]


def clipped_bounds(linears: list[Linear]) -> list[Norm]:
    """List the bounds of linears."""
    return [
        Norm(bounds_of(each.name), f"{each.sources[0].removesuffix(WITHIN)}{BOUNDS}", len(PARTS), each.layers, False)
        for each in linears
    ]
