"""How long instructions last on a core by its tables (`port_tables`): they start as soon as what they need is there.

Operations are renamed in order, so many a cycle, as far as there is room for those that wait and for those that are not
retired. Each takes the first cycle from then on in which its operands are ready and one of its ports is free. Every
load finds its data in the first cache, every branch goes where it was expected to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from port_tables import Core, is_vector, kind_of, name_of

_JOINED = re.compile(r"\s+(?:cmp|test|add|sub|inc|dec|and|subs|cmn|tst)\w*\s")
_CONDITIONAL = re.compile(r"\s+(?:j(?!mp)\w+|b\.\w+)\s")
_REGISTER = re.compile(r"%\w+|\b(?:[vqxwdsb]\d+|sp)\b")


class Step(NamedTuple):
    """An instruction: ports of its load and of its other operations, and the registers of each."""

    load: str
    ports: list[str]
    cycles: int
    address: list[str]
    sources: list[str]
    targets: list[str]
    renamed: int
    pumped: bool = False


def registers(text: str) -> list[str]:
    """Return the registers in a text, those of one by one name."""
    found = []
    for name in _REGISTER.findall(text):
        if name.startswith("%"):
            vector = re.fullmatch(r"%[xyz]mm(\d+)", name)
            scalar = re.fullmatch(r"%(?:[re]?([a-d])[xlh]|[re]?([sd]i|[sb]p)l?|(r\d+)[dwb]?)", name)
            found.append(f"v{vector[1]}" if vector else next(filter(None, scalar.groups())) if scalar else name)
        else:
            found.append(re.sub(r"^q", "v", re.sub(r"^w", "x", name)))
    return found


def step_of(line: str, core: Core) -> Step:
    """Return a core's operations for an instruction."""
    is_wide = "%zmm" in line
    ports = core.ports | core.wide if is_wide else core.ports
    step = (_of_x86 if "%" in line or re.match(r"\s+j", line) else _of_arm)(line, ports, core)
    return step._replace(pumped=is_wide and core.pumped)


def _of_x86(line: str, ports: dict[str, str], core: Core) -> Step:
    name, operands = name_of(line), re.sub(r"^\s*(\{\w+\})?\s*\w+\s*", "", line)
    memory = re.findall(r"[\w-]*\(.*?\)", operands)
    slots = [each for each in memory if re.fullmatch(r"-?\d*\(%r[sb]p\)", each)]
    address = registers(" ".join(memory)) + slots
    plain = registers(re.sub(r"\(.*?\)", "", operands))
    if name.startswith("j"):
        return Step("", [ports["branch"]], 1, [], [], [], 1)
    if name.startswith("prefetch"):
        return Step(ports["load"], [], 0, address, [], [], 1)
    if name.startswith("lea"):
        return Step("", [ports["scalar"]], 1, [], address, plain[-1:], 1)
    if operands.rstrip().endswith(")") and not re.match(r"cmp|test", name):
        cycles = core.cycles.get("vector store" if is_vector(line) else "store", 1)
        return Step("", [ports["store"], ports["stored"]], cycles, [], registers(" ".join(memory)) + plain, slots, 1)
    load = ports.get("vector load" if is_vector(line) else "load", ports["load"]) if address else ""
    if not is_vector(line):
        moves = name.startswith("mov")
        return Step(load, [] if moves else [ports["scalar"]], 1, address, plain[: -1 if moves else None], plain[-1:], 1)
    if re.match(r"vp?xor", name) and not address and len(set(plain[:-1])) == 1:
        return Step("", [], 0, [], [], plain[-1:], 1)
    if load and re.fullmatch(r"vp?(mov[dua]\w*|broadcast\w+)", name):
        return Step(load, [], 0, address, [], plain[-1:], 1)
    kind = kind_of(line)
    sources = plain if kind in ("dot", "fma", "pairs") and len(plain) + bool(load) > 2 else plain[:-1]
    # Of two registers and an address with an index, the processor renames load and operation apart.
    renamed = 2 if core.split and load and len(plain) > 1 and re.search(r"\(%\w+,", line) else 1
    return Step(load, [ports[kind]] if kind else [], core.cycles.get(kind, 1), address, sources, plain[-1:], renamed)


def _of_arm(line: str, ports: dict[str, str], core: Core) -> Step:
    name, operands = name_of(line), re.sub(r"^\s*\S+\s*", "", line)
    address = registers(" ".join(re.findall(r"\[[^\]]*[a-z][^\]]*\]", operands)))
    plain = registers(re.sub(r"\[[^\]]*\]", "", operands))
    if re.match(r"b$|cb|tb", name):
        return Step("", [ports["branch"]], 1, [], plain, [], 1)
    if name == "prfm":
        return Step(ports["load"], [], 0, address, [], [], 1)
    if name.startswith("ld"):
        lanes = [ports["logic"]] if name.startswith("ld1r") else []
        return Step(ports["load"], lanes, 2 * len(lanes), address, [], plain, 2 if lanes or name == "ldp" else 1)
    if name.startswith("st"):
        return Step("", [ports["store"]], 1, [], address + plain, [], 1)
    if not is_vector(line):
        return Step("", [] if name == "mov" else [ports["scalar"]], 1, [], plain[1:], plain[:1], 1)
    kind = kind_of(line)
    times = 2 if kind in core.doubled else 1
    sources = plain if kind in ("dot", "matrix") or name in ("fmla", "fmls") else plain[1:]
    return Step("", [ports[kind]] * times if kind else [], core.cycles.get(kind, 1), [], sources, plain[:1], times)


def steps_of(lines: Sequence[str], core: Core) -> list[Step]:
    """Return the steps of instructions that follow each other; a comparison and its branch are one."""
    return [
        step_of(line, core)
        for line, after in zip(lines, [*lines[1:], ""])
        if is_vector(line) or not (_JOINED.match(line) and _CONDITIONAL.match(after))
    ]


class Pipeline:
    """The state of a core: when registers are ready, ports busy, and operations retired."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ready: Counter[str] = Counter()
        self._busy: dict[str, set[int]] = {}  # cycles
        self._queues: dict[str, list[int]] = {}  # cycles in which operations run that wait for a port
        self._waiting: list[int] = []  # cycles in which operations leave the queue of those that wait
        self._schedulers: list[list[int]] = [[] for _ in core.schedulers]  # the same, of ports with one of their own
        self._entered: list[int] = [0]  # cycles in which operations came into one of these
        self._counted, self._counts = -1, [0] * len(core.schedulers)  # a cycle, and how many waited as it began
        self._retired: list[int] = []
        self._cycle = self._renamed = 0  # of renaming, and the operations renamed in it

    def run(self, steps: Sequence[Step]) -> int:
        """Run steps behind those before; return the cycle in which all are retired."""
        for step in steps:
            self._run(step)
        return self._retired[-1]

    def _run(self, step: Step) -> None:
        core = self._core
        if step.ports and self._has_scheduler(step.ports[0]):
            self._wait_for_line()
        if step.renamed > 1 and 0 < core.split <= self._renamed:
            self._renamed = core.width
        for _ in range(step.renamed):
            self._rename()
        start = done = self._cycle
        if step.load:
            ready = max([start, *(self._ready[each] for each in step.address)])
            start = self._issue(step.load, ready, step.pumped)
            done = start + core.cycles["load"]
            self._busy_until(start)
        ready = max([done, *(self._ready[each] for each in step.sources)])
        for ports in step.ports:
            start = self._issue(ports, ready, step.pumped)
            done = max(done, start + step.cycles)
        if step.ports and not self._has_scheduler(step.ports[0]):
            self._busy_until(start)
        done = max(done, ready)
        for each in step.targets:
            self._ready[each] = done
        self._retired += [max([done, *self._retired[-1:]])] * step.renamed

    def _rename(self) -> None:
        """Rename an operation when there is room for it."""
        core, earliest = self._core, self._cycle + (self._renamed == self._core.width)
        if len(self._retired) >= core.window:
            earliest = max(earliest, self._retired[-core.window])
        while len(self._waiting) >= core.waiting:
            earliest = max(earliest, heappop(self._waiting))
        self._rename_from(earliest)
        self._renamed += 1

    def _rename_from(self, cycle: int) -> None:
        if cycle > self._cycle:
            self._cycle, self._renamed = cycle, 0

    def _wait_for_line(self) -> None:
        """Rename no operation until there is room in the line of those that wait for a scheduler."""
        if len(self._entered) > self._core.line:
            self._rename_from(self._entered[-self._core.line])

    def _has_scheduler(self, ports: str) -> bool:
        return any(ports[0] in served for served, _ in self._core.schedulers)

    def _enter(self, ports: str) -> tuple[int, str, int]:
        """Let an operation into a scheduler, in order; return its number, its ports of these, and the cycle."""
        cycle, schedulers = max(self._cycle, self._entered[-1]), self._core.schedulers
        if cycle > self._counted:
            self._counted, self._counts = cycle, [sum(each > cycle for each in waiting) for waiting in self._schedulers]
        possible = [i for i, (served, _) in enumerate(schedulers) if set(ports) & set(served)]
        number = min(possible, key=self._counts.__getitem__)
        while len(self._schedulers[number]) >= schedulers[number][1]:
            cycle = max(cycle, heappop(self._schedulers[number]))
        self._entered.append(cycle)
        return number, "".join(port for port in ports if port in schedulers[number][0]), cycle

    def _busy_until(self, cycle: int) -> None:
        heappush(self._waiting, cycle)

    def _issue(self, ports: str, ready: int, pumped: bool) -> int:
        """Return when an operation runs, once a port is free, for two cycles if it is pumped.

        That is the port that has least to do when it is renamed. Where ports share schedulers, it waits in that in
        which fewest wait as the cycle begins, for any of its ports.
        """
        if self._has_scheduler(ports):
            number, ports, entered = self._enter(ports)
            port = min(ports, key=lambda each: self._first_free(each, max(ready, entered), pumped))
            queue, ready = self._schedulers[number], max(ready, entered)
        else:
            port = min(ports, key=self._pending)
            queue = self._queues.setdefault(port, [])
        start = self._first_free(port, ready, pumped)
        self._busy[port] |= {start, start + pumped}
        heappush(queue, start)
        return start

    def _first_free(self, port: str, ready: int, pumped: bool) -> int:
        busy = self._busy.setdefault(port, set())
        while ready in busy or ready + pumped in busy:
            ready += 1
        return ready

    def _pending(self, port: str) -> int:
        """Return how many operations wait for a port."""
        queue = self._queues.setdefault(port, [])
        while queue and queue[0] <= self._cycle:
            heappop(queue)
        return len(queue)


def cycles_of(lines: Sequence[str], core: Core, before: int = 6, counted: int = 12) -> float:
    """Return the cycles of instructions that are repeated."""
    steps, pipeline = steps_of(lines, core), Pipeline(core)
    for _ in range(before):
        first = pipeline.run(steps)
    for _ in range(counted):
        last = pipeline.run(steps)
    return (last - first) / counted
