"""What every test shares: a private home for models, one cache of compiled kernels, a seeded generator."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

# The oracles beside this file (reference, families) are imported by tests in every subfolder.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_counts():
    """Take Ctrl-C as usual, also where a shell started the tests in the background and had them ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory, monkeypatch):
    """Point the store of models at a folder of this test alone."""
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True, scope="session")
def kernel_cache():
    """Keep compiled kernels where the user keeps them, whatever home a test or its processes are given."""
    root = os.environ.get("TINYCHAT_CACHE")
    root = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinychat"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYCHAT_CACHE", str(root))
        yield


@pytest.fixture
def rng():
    """Return a numpy generator that draws the same values in every run."""
    return np.random.default_rng(20_240_601)
