"""The memory that Linux grants to this process's control group, such as a container's, and to those around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MEMBERSHIP = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


class GroupMemory(NamedTuple):
    """Bytes that a control group may take, and those that it could still take without being stopped."""

    limit: int
    available: int


class _Files(NamedTuple):
    """Names of a version of control groups: limits, use, and the name in memory.stat of what can be given back."""

    limits: tuple[str, ...]
    usage: str
    given_back: str


_SECOND = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_FIRST = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def group_memory(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> GroupMemory | None:
    """Return the memory of the group that has least left; None without a limit, or where there are no groups."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    found = [each for line in lines for each in _limited(line, mounted)]
    return min(found, key=lambda each: each.available, default=None)


def _limited(line: str, mounted: Path) -> Iterator[GroupMemory]:
    """Yield the limited groups of a line of /proc/self/cgroup: its own and those above it."""
    _, _, rest = line.partition(":")
    controllers, _, name = rest.partition(":")
    if controllers and "memory" not in controllers.split(","):
        return
    top = mounted / "memory" if controllers else mounted
    folder = top / name.lstrip("/")
    for each in (folder, *folder.parents):
        if (memory := _memory_of(each, _FIRST if controllers else _SECOND)) is not None:
            yield memory
        if each == top:
            return


def _memory_of(folder: Path, files: _Files) -> GroupMemory | None:
    limits = [limit for name in files.limits if (limit := _number(folder / name)) is not None]
    # The first version writes nearly 2**63 for none.
    if not limits or min(limits) >= 1 << 60 or (used := _number(folder / files.usage)) is None:
        return None
    try:
        given_back = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used -= int(given_back.get(files.given_back, 0))
    except (OSError, ValueError):
        pass
    return GroupMemory(min(limits), max(0, min(limits) - used))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
