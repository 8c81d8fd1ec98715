"""The prefix cache finds the longest beginning among all texts, however many there are."""

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tinychat.engine.ids import common_length
from tinychat.engine.prefixes import PrefixIndex
from tinychat.kernels.sizes import BLOCK

# Few tokens, and long common beginnings: blocks that go on otherwise, and such that are a part of others.
TEXTS = st.lists(
    st.tuples(st.integers(0, 2 * BLOCK + 3), st.lists(st.integers(0, 2), max_size=6)).map(
        lambda text: [0] * text[0] + text[1]
    ),
    min_size=1,
    max_size=20,
)


def blocks_of(ids, first):
    return list(range(first, first + -(-len(ids) // BLOCK)))


def nodes_of(index):
    waiting = [*index._roots.values()]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


@given(TEXTS, TEXTS)
def test_the_longest_beginning_of_any_text_is_found(texts, others):
    index = PrefixIndex()
    blocks = 0
    for number, ids in enumerate(texts):
        index.insert(0, ids, blocks_of(ids, 1000 * number))
    for ids in [*texts, *others]:
        found, length = index.match(0, ids)
        assert length == max(common_length(ids, text) for text in texts)
        assert len(found) == -(-length // BLOCK)
        assert index.match(1, ids) == ([], 0), "keys of other angles"
    for node in nodes_of(index):
        parts = [child.ids for child in node.children]
        assert parts == sorted(parts)
        assert all(later[: len(part)] != part for part, later in pairwise(parts))
        blocks += len(parts)
    assert blocks == len(index)


@given(TEXTS, st.data())
def test_what_is_evicted_is_no_longer_found_and_all_else_is(texts, data):
    index = PrefixIndex()
    for number, ids in enumerate(texts):
        index.insert(0, ids, blocks_of(ids, 1000 * number))
    before = sorted(index.blocks())
    gone = index.evict(data.draw(st.integers(0, len(before))), lambda block: block % 3 > 0)
    assert sorted([*index.blocks(), *gone]) == before
    assert not {*gone} & {block for ids in texts for block in index.match(0, ids)[0]}


def test_many_texts_cost_each_no_more():
    """A look at all texts for each would be 200 million."""
    index = PrefixIndex()
    texts = [[7, 7, number % 251, number // 251, 7] for number in range(20_000)]
    started = time.perf_counter()
    for number, ids in enumerate(texts):
        assert index.match(0, ids)[1] < len(ids)
        index.insert(0, ids, [number])
    assert time.perf_counter() - started < 5.0
    assert all(index.match(0, ids) == ([number], 5) for number, ids in enumerate(texts))
