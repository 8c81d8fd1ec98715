"""The prefix cache: a tree of the blocks of earlier sequences by their token ids.

A node is a block: up to 64 tokens, after those of the nodes above it. Keys and values of a token depend on nothing but
the tokens up to it, so a new sequence can use the blocks of the longest prefix that it shares with any earlier one, to
the bit (Zheng et al., 2023, https://arxiv.org/abs/2312.07104).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter

from tinychat.engine.ids import common_length
from tinychat.kernels.sizes import BLOCK

Ids = Sequence[int]
_IDS, _LENGTH = attrgetter("ids"), itemgetter(0)


class Node:
    """One block and its tokens, with the children in the order of theirs; none are the beginning of another's."""

    __slots__ = ("block", "children", "ids", "parent")

    def __init__(self, ids: tuple[int, ...], block: int, parent: Node | None) -> None:
        self.ids = ids
        self.block = block
        self.parent = parent
        self.children: list[Node] = []

    def common(self, ids: Ids) -> int:
        """Return how many leading ids are this block's."""
        if tuple(ids[: len(self.ids)]) == self.ids:
            return len(self.ids)
        return common_length(self.ids, ids)

    def index(self, ids: tuple[int, ...]) -> int:
        """Return the index at which a child of these ids is, or would be."""
        return bisect_left(self.children, ids, key=_IDS)

    def nearest(self, ids: tuple[int, ...]) -> tuple[int, Node | None]:
        """Return how many leading ids are a child's, and the child that has most: in their order it is beside them."""
        at = self.index(ids)
        found = [(child.common(ids), child) for child in self.children[max(0, at - 1) : at + 1]]
        return max(found, key=_LENGTH, default=(0, None))


class PrefixIndex:
    """The tree; the least recently used blocks are evicted first.

    Keys that were rotated by different sets of angles (`models.rope.angle_set`) have roots of their own.
    """

    def __init__(self) -> None:
        self._roots: dict[int, Node] = {}
        # From the least recently used on; a node after all below it.
        self._nodes: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def blocks(self) -> Iterator[int]:
        """Yield all blocks."""
        return (node.block for node in self._nodes)

    def match(self, angles: int, ids: Ids) -> tuple[list[int], int]:
        """Return the blocks of the longest prefix of `ids`, and its length; the last block may go on otherwise."""
        nodes, length = self._path(angles, ids)
        self._use(nodes)
        return [node.block for node in nodes], length

    def insert(self, angles: int, ids: Ids, blocks: list[int]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
        """Insert the blocks of a sequence's first ids, of which the last may be partly filled.

        Returns the blocks that were not in the tree; the index of each block that is not inserted, with the block of
        the same tokens that is in the tree; and the evicted blocks, whose tokens are the beginning of a new block's.
        """
        node = self._roots.setdefault(angles, Node((), -1, None))
        nodes: list[Node] = []
        added, known, replaced = [], [], []
        for index, block in enumerate(blocks):
            part = tuple(ids[index * BLOCK : (index + 1) * BLOCK])
            at, siblings = node.index(part), node.children
            found = siblings[at] if at < len(siblings) and siblings[at].ids[: len(part)] == part else None
            if found is None and block < 0:
                break  # freed, and evicted since
            if found is None:
                if at and part[: len(siblings[at - 1].ids)] == siblings[at - 1].ids:
                    at -= 1
                    replaced += self._remove(siblings[at])
                found = Node(part, block, node)
                siblings.insert(at, found)
                added.append(block)
            elif found.block != block and block >= 0:
                known.append((index, found.block))
            nodes.append(found)
            node = found
        self._use(nodes)
        return added, known, replaced

    def evict(self, count: int, is_unused: Callable[[int], bool]) -> list[int]:
        """Evict at least `count` unused blocks, if there are as many; return all evicted ones."""
        gone: list[int] = []
        unused = 0
        for node in list(self._nodes):
            if unused >= count:
                break
            if node in self._nodes and is_unused(node.block):
                unused += 1
                gone += self._remove(node)
        return gone

    def evict_block(self, block: int) -> list[int]:
        """Evict a block and those below it; return them."""
        node = next((node for node in self._nodes if node.block == block), None)
        return [] if node is None else self._remove(node)

    def evict_branch(self, angles: int, ids: Ids) -> list[int]:
        """Take out the blocks of `ids` behind the last one that other texts go on from; return them."""
        nodes, length = self._path(angles, ids)
        gone: list[int] = []
        # The last one may hold tokens of another text only.
        is_own = bool(nodes) and (len(nodes) - 1) * BLOCK + len(nodes[-1].ids) == length
        for node in reversed(nodes if is_own else nodes[:-1]):
            if node.children:
                break
            gone += self._remove(node)
        return gone

    def _path(self, angles: int, ids: Ids) -> tuple[list[Node], int]:
        node, nodes, length = self._roots.get(angles), [], 0
        while node is not None and length < len(ids):
            common, best = node.nearest(tuple(ids[length : length + BLOCK]))
            if best is None or common == 0:
                break
            nodes.append(best)
            length += common
            node = best if length % BLOCK == 0 else None
        return nodes, length

    def _use(self, nodes: list[Node]) -> None:
        for node in reversed(nodes):
            self._nodes[node] = None
            self._nodes.move_to_end(node)

    def _remove(self, node: Node) -> list[int]:
        """Remove a node and all below it; return their blocks."""
        assert node.parent is not None
        del node.parent.children[node.parent.index(node.ids)]
        gone, waiting = [], [node]
        while waiting:
            lost = waiting.pop()
            del self._nodes[lost]
            gone.append(lost.block)
            waiting += lost.children
        return gone
