"""Processes that tests start: whether they still run, and one that is killed."""

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


KILLED_CONVERSION = """
import os, signal, sys
from tinychat.conversion import convert, unfinished

write, steps = unfinished.JournaledWriter.write_parts, int(sys.argv[3])

def write_and_die(self, linear, layer, parts, note=()):
    global steps
    steps -= 1
    if steps < 0:
        next(iter(parts))
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, linear, layer, parts, note)

unfinished.JournaledWriter.write_parts = write_and_die
"""
"""The beginning of a program that is killed while it writes a model folder: after how many parts, argument 3 says."""
