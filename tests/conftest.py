"""What every test shares: a private home for models, one cache of compiled kernels, a seeded generator."""

import ctypes
import functools
import gc
import itertools
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

# Memory of engines that have ended goes back to the system: a worker would grow to gigabytes, and fill what it uses
# again with zeros. glibc otherwise takes arrays of up to 32 MiB from its heap, once one of that size was freed.
with suppress(AttributeError, OSError, TypeError):
    M_MMAP_THRESHOLD = -3
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)

# Processes beside each other have a core each: NumPy's threads would wait for cores, spinning. Before it is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

# Engines that a test opens compile when they first run. To look for garbage after each 700 new objects takes 8 % of it.
gc.set_threshold(50_000, 20, 100)

# The oracles beside this file (reference, families) are imported by tests in every subfolder.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    """Begin with the slowest: with several processes nobody waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """Return paths, none twice. pytest would look through all its folders for the next number, in each test."""
    root = tmp_path_factory.mktemp("homes")
    return map(root.joinpath, map(str, itertools.count()))


@pytest.fixture(autouse=True)
def private_home(homes, monkeypatch):
    """Point the store of models at a folder of this test alone."""
    home = next(homes)
    home.mkdir(mode=0o700)
    monkeypatch.setenv("TINYCHAT_HOME", str(home))
    # Whatever is installed beside the tests.
    monkeypatch.setenv("TINYCHAT_MODEL", "demo")
    for variable in ("OLLAMA_MODELS", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, str(home / variable))
    monkeypatch.setattr("tinychat.store.external_models._LM_STUDIO_HOMES", (str(home / "lm-studio"),))


@pytest.fixture(autouse=True, scope="session")
def kernel_cache():
    """Keep compiled kernels where the user keeps them, whatever home a test or its processes are given."""
    root = os.environ.get("TINYCHAT_CACHE")
    root = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinychat"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYCHAT_CACHE", str(root))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_compiler_a_core():
    """Start no second process that compiles where each core has a process of tests, and none for models to come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinychat.engine.precompile.begin", lambda config, quantization: None)
        if "PYTEST_XDIST_WORKER" in os.environ:
            patch.setattr("tinychat.engine.second_compiler.MOST", 0)
        yield


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return a function from a variant and its quantization to a model folder, which tests must leave as it is."""
    import engines

    place = tmp_path_factory.mktemp("models")

    @functools.cache
    def convert(name, method):
        if name == "stories260K" and not engines.STORIES.is_dir():
            pytest.skip(f"needs a trained checkpoint at {engines.STORIES}")
        return engines.convert_variant(name, method, place / f"{name}-{method}")

    return lambda name, method="int4": convert(name, method)


@pytest.fixture
def rng():
    """Return a numpy generator that draws the same values in every run."""
    return np.random.default_rng(20_240_601)


@pytest.fixture
def start():
    """Return a function that starts the chat; what it started ends with the test."""
    from terminal_app import Terminal

    started = []

    def begin(*arguments, columns=80, **environment):
        terminal = Terminal(arguments, environment, columns)
        started.append(terminal)
        return terminal

    yield begin
    for terminal in started:
        terminal.child.close(force=True)
