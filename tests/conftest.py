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
def signals_count():
    """Take signals as usual, also where a shell in the background, or nohup, started the tests and had them ignored."""
    usual = {signal.SIGINT: signal.default_int_handler}
    if hasattr(signal, "SIGHUP"):
        usual[signal.SIGHUP] = signal.SIG_DFL
    previous = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


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
