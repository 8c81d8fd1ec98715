"""Layers that read mixtures of what blocks of layers give, and run in loops that tell each other (Inkling 2).

A block is some layers that follow one another. Their residual stream begins with 0, and what it is at their end is kept
in a *slot*. A layer's attention and its MLP read a softmax over all slots so far and the residual stream, each of
length 1, by a query of their own. In each loop but the first, layers also read messages: mixtures of what the blocks of
the loop before gave. Before they meet, keys and values are convolved with those of earlier positions, and so is what
attention and MLP give: a sequence has a state beside its keys and values
(github.com/huggingface/transformers, models/inkling2_loop).
"""

from dataclasses import dataclass
from typing import NamedTuple

from tinychat.models.loops import Loops
from tinychat.models.state_layers import StateLayers
from tinychat.models.tensors import Linear, Norm, columns_of

# Linears of the taps that convolutions have for each token: few weights that decide much.
TAPS = "key_taps_proj", "value_taps_proj"
# Linears of the gates of messages, by what reads these; of their inputs, then of what these give.
READERS = "query", "key", "value", "mlp"
GATE_INPUTS = tuple(f"{reader}_{part}_proj" for reader in READERS for part in ("mixture", "message"))
GATES = tuple(f"{reader}_gates_proj" for reader in READERS)
NONE = -1  # no slot


class Seen(NamedTuple):
    """Slots that a mixture is of: the first ones, and further ones that follow one another."""

    first: int  # how many of the first ones
    other: int = 0  # the first of the further ones
    others: int = 0  # how many these are


class Visit(NamedTuple):
    """The slots that a layer reads and writes in one of its runs."""

    attention: Seen
    mlp: Seen
    message: Seen  # of the loop before; none in the first loop and outside of loops
    begin: int  # the slot that a loop begins with
    append: int  # the slot that the residual stream is written to where a block begins
    keep: int  # the slot that it is written to where a loop ends
    loop_layer: int  # the layer's place in the loop, 0 outside


@dataclass(frozen=True, slots=True)
class BlockMixtures(StateLayers):
    """The mixtures, convolutions and scores of one model; `layers` are the runs of its layers.

    There are no matrices, so `key_dim` is 0; `value_dim` is the size of the residual stream.
    """

    loops: Loops
    layer_count: int  # layers, each counted once
    head_dim: int
    block: int  # layers of a block
    whole: tuple[int, ...]  # the layers that see all positions
    relative_size: int  # numbers of a head that weigh profiles of scores by distance
    reaches: tuple[int, int]  # positions that these profiles have, in layers with a window and without
    clip: float  # the largest length of a query or key
    relative_clip: float  # and of the numbers that weigh profiles
    growth: float  # where all positions are seen, queries at p are times 1 + growth ln(max(1, (p + 1) / floor))
    floor: int
    gate_rank: int

    @property
    def key_width(self) -> int:
        """Numbers of all heads of keys, or of values."""
        return self.key_heads * self.head_dim

    @property
    def windowed(self) -> tuple[int, ...]:
        """The layers with a window."""
        return tuple(layer for layer in range(self.layer_count) if layer not in self.whole)

    @staticmethod
    def behind_first(layers: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of some layers that have queries for attention: the model's first reads the embedding alone."""
        return tuple(layer for layer in layers if layer)

    @property
    def looped(self) -> tuple[int, ...]:
        """The layers that run in loops."""
        return tuple(range(self.loops.first, self.loops.last))

    @property
    def layer_floats(self) -> int:
        """Numbers of one run's state: the last inputs of the convolutions of keys, values, attention and MLP."""
        return (self.taps - 1) * 2 * (self.key_width + self.value_dim)

    @property
    def convolutions(self) -> tuple[int, int, int, int]:
        """Where the inputs of each convolution begin in a run's state."""
        back = self.taps - 1
        return 0, back * self.key_width, back * 2 * self.key_width, back * (2 * self.key_width + self.value_dim)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return 1 + max(max(visit.append, visit.keep) for visit in self.visits())

    def visits(self) -> tuple[Visit, ...]:
        """Return how each run of a layer reads and writes slots.

        Blocks before the loops have the first slots, and what all loops begin with has the next. Behind them, two rows
        of slots take turns: one of the loop, the other of the loop before, of which messages are. A row ends with what
        its loop gives, and behind the last one come the blocks that follow.
        """
        loops, size = self.loops, self.block
        before, of_loop = loops.first // size, (loops.last - loops.first) // size
        rows = before + 1, before + 1 + of_loop
        found, loop = [], 0
        seen, other = Seen(0, rows[0]), rows[0]
        for run, layer in enumerate(loops.layer_runs(self.layer_count)):
            is_looped, begin, append, keep, message = loops.first <= layer < loops.last, NONE, NONE, NONE, Seen(0)
            if layer == loops.first:
                loop = (run - loops.first) // (loops.last - loops.first)
                other, begin = rows[loop % 2], before if loop else NONE
                seen = Seen(before, other)
            attention = seen
            if layer % size == 0:
                # Those up to the beginning of the loops stay for all of them.
                stays = layer <= loops.first
                append = seen.first if stays else other + seen.others
                seen = seen._replace(first=seen.first + stays, others=seen.others + (not stays))
            if layer == loops.last - 1:
                keep = other + of_loop - 1
            if is_looped and loop:
                message = Seen(0, rows[(loop + 1) % 2], of_loop)
            place = layer - loops.first if is_looped else 0
            found.append(Visit(attention, seen, message, begin, append, keep, place))
        return tuple(found)


def mixture_linears(net: BlockMixtures, heads: int, layer: str, attention: str) -> list[Linear]:
    """List the linear layers before attention, and those of messages; `layer` and `attention` begin their names."""
    D, R, count, at = net.value_dim, net.gate_rank, net.layer_count, net.looped
    queries = heads * net.head_dim
    rows = queries, queries, heads * net.relative_size, heads
    names = tuple(f"{attention}{name}" for name in ("wq_du", "gate_attn", "wr_du", "attn_sink_proj"))
    found = [Linear("query_proj", names, rows, D, count)]
    for letter, name, taps in zip("kv", ("key_proj", "value_proj"), TAPS):
        of_taps = (f"{attention}{letter}_sconv.weight_proj",), (net.key_heads * net.taps,)
        found.append(Linear(name, (f"{attention}w{letter}_dv",), (net.key_width,), D, count))
        found.append(Linear(taps, *of_taps, D, len(net.whole), at=net.whole))
    for reader, name in zip(READERS, ("attn", "k", "v", "mlp")):
        gate = f"{layer}controllers.{name}."
        halves = columns_of(f"{gate}down_weight", D, D)
        for part, half in zip(("mixture", "message"), halves):
            found.append(Linear(f"{reader}_{part}_proj", (half,), (R,), D, len(at), at=at))
        both = f"{gate}forget_weight", f"{gate}gain_weight"
        found.append(Linear(f"{reader}_gates_proj", both, (D, D), R, len(at), at=at))
    return found


def mixture_norms(net: BlockMixtures, heads: int, layer: str, attention: str, last: str) -> list[Norm]:
    """List the norms, queries of slots, taps, scales and profiles; `last` begins the names of those of no layer."""
    D, K, R, G = net.value_dim, net.taps, net.relative_size, net.key_width
    L, windowed, whole = net.layer_count, net.windowed, net.whole
    messages = 2 * len(net.looped) * D

    def vector(name: str, source: str, size: int, at: tuple[int, ...] = ()) -> Norm:
        return Norm(name, source, size, len(at) or L, padded=False, at=at, flattened=True)

    found = [Norm("input_layernorm", f"{layer}attn_norm", D, len(windowed), at=windowed)]
    found += [
        Norm(f"{reader}_input_norm", f"{layer}{reader[0]}_input_norm", D, len(whole), at=whole)
        for reader in READERS[:3]
    ]
    found += [
        vector("window_query", f"{layer}attention_input.query", D, net.behind_first(windowed)),
        vector("whole_queries", f"{layer}attention_input.query", 3 * D, net.behind_first(whole)),
        vector("mlp_query", f"{layer}mlp_input.query", D),
        vector("query_scales", f"{attention}q_l2_clip.scale", heads * net.head_dim),
        vector("relative_scales", f"{attention}rel_l2_clip.scale", heads * R),
        vector("attention_taps", f"{layer}attn_sconv", K * D),
        vector("mlp_taps", f"{layer}mlp_sconv", K * D),
    ]
    for kind, at, reach, ending in zip(("window", "whole"), (windowed, whole), net.reaches, ("", ".static_w")):
        found.append(vector(f"{kind}_profiles", f"{attention}rel_logits_proj.proj", R * reach, at))
        for letter, name in zip("kv", ("key", "value")):
            found.append(vector(f"{kind}_{name}_taps", f"{attention}{letter}_sconv{ending}", K * G, at))
    found.append(Norm("message_norm", "", D, len(net.looped), at=net.looped))
    for name, source in (("message_queries", "queries"), ("message_kv_queries", "kv_queries")):
        source = f"{last}middle_cycle_cross_pass_{source}"
        found.append(Norm(name, source, messages, None, padded=False, flattened=True))
    found.append(Norm("output_query", f"{last}attn_res.output_query", D, None, padded=False))
    return found
