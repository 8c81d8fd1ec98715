"""Checkpoints from the Hugging Face hub, or from any server at $HF_ENDPOINT that speaks its protocol."""

import os
from pathlib import Path

from tinychat.checkpoint.checkpoint import TEXT_FILES
from tinychat.checkpoint.gguf import ADVICE as GGUF
from tinychat.checkpoint.tensors import WEIGHT_FILES
from tinychat.errors import HubError
from tinychat.model.config import ModelConfig
from tinychat.model.json_file import one_line

# In order of preference; each pattern reaches the files that the index of that format lists.
_WEIGHTS = (
    ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"],
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"],
)


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """Download a checkpoint into the hub's own cache, only the files that are needed.

    The configuration comes first, so that a model that is not supported is refused before its weights
    are downloaded. Interrupted downloads are continued; what is in the cache needs no network.

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
        If the hub cannot be reached, or has no such repository, revision or weights, or refuses access.
    UnsupportedModelError, CheckpointError
        As `ModelConfig.from_file` does.
    """
    folder = _snapshot(repo_id, revision, list(TEXT_FILES))
    if not (folder / "config.json").is_file():
        advice = _advice(repo_id)
        raise HubError(f"{repo_id} has no config.json, so it is no checkpoint in the Hugging Face layout; {advice}")
    ModelConfig.from_file(folder / "config.json")
    for patterns in _WEIGHTS:
        # The folder is named by its commit: all parts come from the same one. The library warns when no
        # file matches, which is an ordinary answer here: one always does.
        folder = _snapshot(repo_id, folder.name, ["config.json", *patterns])
        if any((folder / name).exists() for name in WEIGHT_FILES):
            return folder
    expected = ", ".join(WEIGHT_FILES)
    raise HubError(f"{repo_id} has no weights that can be read (expected one of {expected}); {_advice(repo_id)}")


def _advice(repo_id: str) -> str:
    # What else lies there was not asked for; such repositories say so in their names.
    return GGUF if "gguf" in repo_id.lower() else "give the repository that it was made from"


def _snapshot(repo_id: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    # The library lets through whatever its HTTP client raises, and that client has changed twice.
    except Exception as error:
        raise HubError(_explain(repo_id, revision, error)) from error
    return Path(folder)


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
