"""Whether processes that a test has started still run."""

import os
from pathlib import Path


def is_running(pid):
    """Return whether a process runs; one that has ended may wait for its parent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or ") Z " not in stat.read_text()
