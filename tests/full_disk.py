"""A limit that stands for a full disk."""

import sys
from contextlib import contextmanager

import pytest

resource = pytest.importorskip("resource", reason="no limit stands for a full disk here")
FULL = 1000


@contextmanager
def full_disk():
    """Let no file grow beyond some bytes, as on a disk that is full; pytest may write its own outside of it.

    No bytecode is written meanwhile: Python keeps what it could write of it, and later processes would fail to read it.
    """
    before, writes_none = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_none
