"""The loops of compiled code, by the branches in its assembly: natural loops, and which lie in which."""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = re.compile(r"(\S+):")
_BRANCH = re.compile(r"\s+(j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.?L\w+)\s*$")
_END = re.compile(r"\s+(?:retq?|jmpq?|b|br|ud2|brk)(?:\s|$)")


class Nest(NamedTuple):
    """A loop: its own blocks of instructions, and the loops in it."""

    blocks: list[list[str]]
    inner: list[Nest]

    @property
    def lines(self) -> list[str]:
        """All of its own instructions."""
        return [line for block in self.blocks for line in block]


class Block(NamedTuple):
    """Instructions without a branch or a label between them, and the labels where the program may go on."""

    lines: list[str]
    targets: list[str]


def is_instruction(line: str) -> bool:
    """Return whether a line of assembly is an instruction: no label, directive or comment."""
    return bool(re.match(r"\s+(\{\w+\}\s*)?[a-z]", line))


def blocks_of(assembly: str) -> dict[str, Block]:
    """Return the basic blocks by their labels; those behind a branch are named by their number."""
    blocks: dict[str, Block] = {}
    name: str | None = None
    for line in assembly.splitlines():
        label = _LABEL.match(line)
        if label or (name is None and is_instruction(line)):
            following = label[1] if label else f"block {len(blocks)}"
            if name is not None:
                blocks[name].targets.append(following)
            name = following
            blocks[name] = Block([], [])
        if name is not None and is_instruction(line):
            blocks[name].lines.append(line)
            branch = _BRANCH.match(line)
            if branch:
                blocks[name].targets.append(branch[2])
            if _END.match(line):
                name = None
            elif branch:
                blocks[name].targets.append(f"block {len(blocks)}")
                name = f"block {len(blocks)}"
                blocks[name] = Block([], [])
    return blocks


def dominators(successors: list[list[int]], predecessors: list[list[int]]) -> list[int]:
    """Return for each block the set of blocks, as bits, that every way to it passes."""
    every = (1 << len(successors)) - 1
    found = [every if each else 1 << i for i, each in enumerate(predecessors)]
    changed = True
    while changed:
        changed = False
        for i, each in enumerate(predecessors):
            if each:
                meet = every
                for p in each:
                    meet &= found[p]
                changed |= found[i] != meet | 1 << i
                found[i] = meet | 1 << i
    return found


def loop_nests(assembly: str) -> list[Nest]:
    """Return all loops, those that lie in others too."""
    blocks = blocks_of(assembly)
    numbers = {name: i for i, name in enumerate(blocks)}
    successors = [[numbers[t] for t in block.targets if t in numbers] for block in blocks.values()]
    predecessors: list[list[int]] = [[] for _ in blocks]
    for i, each in enumerate(successors):
        for target in each:
            predecessors[target].append(i)
    passed = dominators(successors, predecessors)
    loops: list[set[int]] = []
    for i, each in enumerate(successors):
        for head in each:
            if passed[i] >> head & 1:
                loops.append(body_of(i, head, predecessors))
    return nested(loops, [block.lines for block in blocks.values()])


def body_of(tail: int, head: int, predecessors: list[list[int]]) -> set[int]:
    """Return the blocks from which `tail` is reached without `head`."""
    found, waiting = {head}, [tail]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting += predecessors[block]
    return found


def nested(loops: list[set[int]], lines: list[list[str]]) -> list[Nest]:
    """Return the nest of each set of blocks, in the order of their first blocks."""
    nests: list[tuple[set[int], Nest]] = []
    for loop in sorted(loops, key=len):
        if any(each[0] == loop for each in nests):
            continue
        within = [each for each in nests if each[0] < loop]
        direct = [a for a in within if not any(a[0] < b[0] for b in within)]
        own = loop.difference(*(blocks for blocks, _ in direct))
        nests.append((loop, Nest([lines[i] for i in sorted(own)], [nest for _, nest in direct])))
    return [nest for _, nest in sorted(nests, key=lambda each: min(each[0]))]
