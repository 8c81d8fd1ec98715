"""What the system says of its cores: how long threads have waited for one, and how many nobody uses. Linux tells."""

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def core_wait(threads: Iterable[int], proc: Path = PROC) -> float | None:
    """Return how many seconds threads of this process have been ready to run while others had their cores, in all.

    Parameters
    ----------
    threads : iterable of int
        Their native ids.
    proc : Path

    Returns
    -------
    float or None
        None where the system does not say.
    """
    try:
        return sum(int((proc / f"self/task/{each}/schedstat").read_text().split()[1]) for each in threads) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def free_cores(proc: Path = PROC) -> int | None:
    """Return how many more threads the machine could run at this moment; None where the system does not say."""
    try:
        running = (proc / "loadavg").read_text().split()[3].split("/")[0]
        return max(0, (os.cpu_count() or 1) - int(running))
    except (OSError, ValueError, IndexError):
        return None
