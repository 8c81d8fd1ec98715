"""A graph without cycles on floors: whatever leads somewhere stands above it, and few edges cross.

(Sugiyama, Tagawa and Toda, 1981.) Edges over several floors get a way point on each floor between, so that they keep
clear of the boxes there. Everything is done in a fixed order, so the same graph is always drawn alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

Graph = Mapping[str, set[str]]
Node = str | tuple[str, str, int]
"""A name, or the way point of an edge from one name to another on a floor."""

SWEEPS = 24


@dataclass(frozen=True)
class Layout:
    """Where nodes and edges are.

    Attributes
    ----------
    floors : list of list of Node
        From the top down, each from left to right.
    x : dict of Node to float
        The middle of each node.
    paths : list of list of Node
        The nodes that each edge passes, from the top down.
    """

    floors: list[list[Node]]
    x: dict[Node, float]
    paths: list[list[Node]]


def reduced(graph: Graph) -> dict[str, set[str]]:
    """Return the graph without edges that a way over other nodes makes needless."""
    below: dict[str, set[str]] = {}
    for node in TopologicalSorter(graph).static_order():
        below[node] = {*graph[node]}.union(*(below[other] for other in graph[node]))
    return {
        node: {other for other in others if not any(other in below[third] for third in others)}
        for node, others in graph.items()
    }


def floors_of(graph: Graph) -> dict[str, int]:
    """Return the floor of each node: 0 for those that lead nowhere, else one above the highest that it leads to."""
    floors: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        floors[node] = 1 + max((floors[other] for other in graph[node]), default=-1)
    return floors


def layout(graph: Graph, width: float, way: float) -> Layout:
    """Return where the nodes of a graph are drawn.

    Parameters
    ----------
    graph : mapping
        For each node, those that it leads to.
    width : float
        From the middle of one name to that of the next on its floor.
    way : float
        Width of a way point.
    """
    floor_of = floors_of(graph)
    paths = [_path(node, other, floor_of) for node in sorted(graph) for other in sorted(graph[node])]
    floors: list[list[Node]] = [[] for _ in range(max(floor_of.values()) + 1)]
    for name in sorted(graph):
        floors[floor_of[name]].append(name)
    for path in paths:
        for node in path[1:-1]:
            assert isinstance(node, tuple)
            floors[node[2]].append(node)
    floors.reverse()
    edges = [edge for path in paths for edge in pairwise(path)]
    floors = _few_crossings(floors, edges)
    sizes = {node: width if isinstance(node, str) else way for floor in floors for node in floor}
    return Layout(floors, _positions(floors, edges, sizes), paths)


def _path(node: str, other: str, floor_of: Mapping[str, int]) -> list[Node]:
    between = range(floor_of[node] - 1, floor_of[other], -1)
    return [node, *((node, other, floor) for floor in between), other]


def _neighbours(edges: Sequence[tuple[Node, Node]]) -> tuple[dict[Node, list[Node]], dict[Node, list[Node]]]:
    above: dict[Node, list[Node]] = {}
    below: dict[Node, list[Node]] = {}
    for upper, lower in edges:
        below.setdefault(upper, []).append(lower)
        above.setdefault(lower, []).append(upper)
    return above, below


def _few_crossings(floors: list[list[Node]], edges: Sequence[tuple[Node, Node]]) -> list[list[Node]]:
    """Return the floors with their nodes in the order of the mean place of their neighbours, the best of some tries."""
    above, below = _neighbours(edges)
    best, fewest = floors, _crossings(floors, below)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = above if downwards else below
        order = range(1, len(floors)) if downwards else range(len(floors) - 2, -1, -1)
        floors = [*floors]
        for i in order:
            fixed = floors[i - 1] if downwards else floors[i + 1]
            means = _means(floors[i], neighbours, {node: at for at, node in enumerate(fixed)})
            floors[i] = sorted(floors[i], key=means.__getitem__)
        crossings = _crossings(floors, below)
        if crossings < fewest:
            best, fewest = floors, crossings
    return best


def _means(
    floor: Sequence[Node], neighbours: Mapping[Node, list[Node]], place: Mapping[Node, int]
) -> dict[Node, float]:
    """Return for each node of a floor the mean place of its neighbours on the next one, or its own."""
    found = {}
    for at, node in enumerate(floor):
        places = [place[other] for other in neighbours.get(node, ())]
        found[node] = sum(places) / len(places) if places else float(at)
    return found


def _crossings(floors: Sequence[Sequence[Node]], below: Mapping[Node, list[Node]]) -> int:
    count = 0
    for upper, lower in pairwise(floors):
        place = {node: at for at, node in enumerate(lower)}
        ends = [place[other] for node in upper for other in sorted(below.get(node, ()), key=place.__getitem__)]
        count += sum(ends[i] > end for j, end in enumerate(ends) for i in range(j))
    return count


def _positions(
    floors: Sequence[Sequence[Node]], edges: Sequence[tuple[Node, Node]], sizes: Mapping[Node, float]
) -> dict[Node, float]:
    """Return the middle of each node: near its neighbours, in the order of its floor, without overlaps."""
    above, below = _neighbours(edges)
    x = {node: sum(sizes[each] for each in floor[:at]) for floor in floors for at, node in enumerate(floor)}
    for sweep in range(SWEEPS):
        for floor in floors if sweep % 2 == 0 else reversed(floors):
            wanted = []
            for node in floor:
                near = [x[other] for other in (*above.get(node, ()), *below.get(node, ()))]
                wanted.append(sum(near) / len(near) if near else x[node])
            x.update(zip(floor, _apart(wanted, [sizes[node] for node in floor])))
    left = min(x[node] - sizes[node] / 2 for node in x)
    return {node: round(place - left, 3) for node, place in x.items()}


def _apart(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Return places in the same order that do not overlap, as near to those that are wanted as least squares go."""
    offsets = [0.0]
    for one, other in pairwise(sizes):
        offsets.append(offsets[-1] + (one + other) / 2)
    # Runs of neighbours that touch, each as the sum of what its members want and their number.
    runs: list[tuple[float, int]] = []
    for place, offset in zip(wanted, offsets):
        total, count = place - offset, 1
        while runs and runs[-1][0] / runs[-1][1] > total / count:
            before, members = runs.pop()
            total, count = before + total, members + count
        runs.append((total, count))
    means = [total / count for total, count in runs for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets)]
