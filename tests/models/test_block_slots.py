"""The slots that runs of layers read and write, against plain lists of blocks."""

from itertools import product

import pytest

from tinychat.models.block_mixtures import NONE, BlockMixtures, Seen, Visit
from tinychat.models.loops import Loops


def mixtures(layers, block, first, last, count):
    """Return mixtures of a model of so many layers, whose loops are `Loops`."""
    sizes = {"key_heads": 1, "value_heads": 1, "key_dim": 0, "value_dim": 16, "taps": 4, "head_dim": 16}
    numbers = {"relative_size": 1, "reaches": (1, 1), "clip": 1.0, "relative_clip": 1.0, "growth": 0.0, "floor": 1}
    loops = Loops(first, last, count)
    kinds = {"layers": tuple(range(len(loops.layer_runs(layers)))), "layer_count": layers, "whole": (1,)}
    return BlockMixtures(**sizes, **numbers, **kinds, loops=loops, block=block, gate_rank=1, beside_attention=True)


def by_lists(layers, block, first, last, count):
    """Return the vectors that attention, MLP and messages of each run read, and those of the last norm.

    The residual stream behind attention is named by the run and "a", that behind the MLP by the run alone.
    """
    found, runs = [], iter(range(layers * count))

    def run(layer, hidden, blocks, heard):
        number = next(runs)
        attention = [*blocks, hidden]
        blocks = [*blocks, hidden] if layer % block == 0 else blocks
        found.append((attention, [*blocks, f"{number}a"], heard))
        return number, blocks

    hidden, blocks = "embedding", []
    for layer in range(first):
        hidden, blocks = run(layer, hidden, blocks, [])
    beginning, heard = (hidden, blocks), []
    for _ in range(count):
        hidden, blocks = beginning
        for layer in range(first, last):
            hidden, blocks = run(layer, hidden, blocks, heard)
        heard = [*blocks[len(beginning[1]) + 1 :], hidden]
    for layer in range(last, layers):
        hidden, blocks = run(layer, hidden, blocks, [])
    return found, [*blocks, hidden]


def read(slots, seen):
    """Return the slots of a mixture, without the residual stream."""
    return [*slots[: seen.first], *slots[seen.other :][: seen.others]]


def by_slots(net):
    """Return the same of `visits`, as `engine.block_layers` follows them."""
    slots, hidden, found = [None] * net.slots, "embedding", []
    for number, visit in enumerate(net.visits()):
        hidden = slots[visit.begin] if visit.begin != NONE else hidden
        attention = [*read(slots, visit.attention), hidden]
        heard = read(slots, visit.message)
        if visit.append != NONE:
            slots[visit.append] = hidden
        mlp = [*read(slots, visit.mlp), f"{number}a"]
        found.append((attention, mlp, heard))
        hidden = number
        if visit.keep != NONE:
            slots[visit.keep] = hidden
    # As `engine.block_parameters.mixture_output` has it.
    return found, [*read(slots, visit.mlp), hidden]


def layouts():
    """Yield layouts with blocks of one to three layers, before, in and behind the loops, the last one of any size."""
    for block, before, inside, behind, count in product((1, 2, 3), (1, 2), (1, 2, 3), (0, 1, 3, 4), (2, 3, 4)):
        first, last = before * block, (before + inside) * block
        yield last + behind, block, first, last, count


def test_slots_hold_what_lists_do():
    for layout in layouts():
        net = mixtures(*layout)
        (runs, last), (expected, output) = by_slots(net), by_lists(*layout)
        assert len(runs) == len(net.layers), layout
        assert (runs, last) == (expected, output), layout


def test_slots_by_hand():
    # Blocks of one layer: one before the loops, two in them, none behind; the second loop hears the first.
    net = mixtures(3, 1, 1, 3, 2)
    assert (net.slots, net.looped) == (6, (1, 2))
    assert net.visits() == (
        Visit(Seen(0, 2), Seen(1, 2), Seen(0), NONE, 0, NONE, 0),
        Visit(Seen(1, 2), Seen(2, 2), Seen(0), NONE, 1, NONE, 0),
        Visit(Seen(2, 2), Seen(2, 2, 1), Seen(0), NONE, 2, 3, 1),
        Visit(Seen(1, 4), Seen(2, 4), Seen(0, 2, 2), 1, 1, NONE, 0),
        Visit(Seen(2, 4), Seen(2, 4, 1), Seen(0, 2, 2), NONE, 4, 5, 1),
    )


@pytest.mark.parametrize(
    ("layout", "slots"),
    [
        # As the published model: the embedding, two rows of two, and what loops begin with; the last block takes a
        # slot of the row that is no longer heard.
        ((24, 6, 6, 18, 3), 6),
        ((24, 6, 6, 18, 2), 6),
        ((2, 1, 1, 2, 2), 4),
        ((8, 2, 2, 4, 2), 5),
        ((9, 2, 2, 4, 2), 6),
    ],
    ids=str,
)
def test_the_number_of_slots(layout, slots):
    assert mixtures(*layout).slots == slots
