"""Checkpoints from the Hugging Face hub, or from any server at $HF_ENDPOINT that speaks its protocol."""

import os
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from tinychat.checkpoint.checkpoint import TEXT_FILES
from tinychat.checkpoint.gguf import ADVICE as GGUF
from tinychat.checkpoint.hub_answers import check_file_name, checked_answers
from tinychat.checkpoint.tensors import WEIGHT_FILES
from tinychat.errors import HubError, TinychatError
from tinychat.json_file import one_line
from tinychat.models.architectures import read_config

# In order of preference; each pattern reaches the files that the index of that format lists.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
_SECONDS_FOR_A_LISTING = 30.0


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """Download a checkpoint into the hub's own cache, only the files that are needed.

    The configuration comes first, so that a model that is not supported is refused before its weights
    are downloaded, and the weights last. Interrupted downloads are continued; what is in the cache needs no network.

    Parameters
    ----------
    repo_id : str
        As in "owner/name".
    revision : str, optional
        Branch, tag or commit; the main branch by default.

    Returns
    -------
    Path
        A checkpoint folder for `open_checkpoint`.

    Raises
    ------
    HubError
        If the hub cannot be reached, or has no such repository, revision or weights, or refuses access; if it
        answers what no hub does, or plain http leads to another machine.
    UnsupportedModelError, CheckpointError
        As `read_config` does.
    """
    with checked_answers():
        try:
            return _fetch(repo_id, revision or "main")
        except TinychatError:
            raise
        # The library lets through whatever its HTTP client raises, and that client has changed twice.
        except Exception as error:
            raise HubError(_explain(repo_id, revision, error)) from error


def _fetch(repo_id: str, revision: str) -> Path:
    names = _list_files(repo_id, revision)
    if "config.json" not in names:
        advice = _advice(repo_id)
        raise HubError(f"{repo_id} has no config.json, so it is no checkpoint in the Hugging Face layout; {advice}")
    folder = _download(repo_id, revision, ["config.json"])
    read_config(folder / "config.json")
    patterns = next((patterns for patterns in _WEIGHTS if names & set(patterns[:2])), None)
    if patterns is None:
        expected = ", ".join(WEIGHT_FILES)
        raise HubError(f"{repo_id} has no weights that can be read (expected one of {expected}); {_advice(repo_id)}")
    weights = sorted(name for name in names if "/" not in name and any(fnmatch(name, p) for p in patterns))
    # The folder is named by its commit: all parts come from the same one.
    return _download(repo_id, folder.name, [*(name for name in TEXT_FILES if name in names), *weights])


def _list_files(repo_id: str, revision: str) -> set[str]:
    """Return the names of a repository's files: of those in the cache where the hub does not answer."""
    from huggingface_hub import HfApi, errors

    try:
        siblings = (
            HfApi(endpoint=_endpoint()).model_info(repo_id, revision=revision, timeout=_SECONDS_FOR_A_LISTING).siblings
        )
    except (TinychatError, errors.RevisionNotFoundError):
        raise
    except Exception as error:
        return _list_cached_files(repo_id, revision, error)
    names = {file.rfilename for file in siblings or ()}
    for name in names:
        check_file_name(name)
    return names


def _list_cached_files(repo_id: str, revision: str, reason: Exception) -> set[str]:
    """Return the names of a repository's files in the cache, if its weights, which come last, are there."""
    from huggingface_hub import errors, snapshot_download

    with suppress(errors.LocalEntryNotFoundError):
        names = set(os.listdir(snapshot_download(repo_id, revision=revision, local_files_only=True)))
        if names & set(WEIGHT_FILES):
            return names
    if isinstance(reason, errors.HfHubHTTPError):
        raise reason
    raise errors.LocalEntryNotFoundError(str(reason)) from reason


def _download(repo_id: str, revision: str, names: Iterable[str]) -> Path:
    """Download what is not in the cache yet, one file after the other; return the folder of them all."""
    from huggingface_hub import hf_hub_download

    files = [hf_hub_download(repo_id, name, revision=revision, endpoint=_endpoint()) for name in names]
    return Path(files[0]).parent


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _advice(repo_id: str) -> str:
    # What else lies there was not asked for; such repositories say so in their names.
    return GGUF if "gguf" in repo_id.lower() else "give the repository that it was made from"


def _explain(repo_id: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    name = one_line(repo_id)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return f"{name!r} is no repo id; expected owner/name"
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return f"{name} is gated: accept its terms on its page, then set HF_TOKEN to a token of your account"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {one_line(str(revision))!r}"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return f"{name} does not exist on the hub, or is private; check the spelling, or set HF_TOKEN"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"{name} is not in the cache and the hub cannot be reached; check the network and HF_ENDPOINT"
    reason = one_line(str(error)) or type(error).__name__
    return f"{name} cannot be downloaded: {reason}; run the command again to continue"
