"""Checkpoints from the Hugging Face hub, or from any server at $HF_ENDPOINT that speaks its protocol.

Its answers are checked: the hub's client makes paths of three headers, and writes files to them unchecked. Names must
stay in their folder, and come over connections that cannot be changed on the way.
"""

from __future__ import annotations

import ipaddress
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tinychat.checkpoint.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, EXPECTED, use_of
from tinychat.checkpoint.checkpoint import TEXT_FILES
from tinychat.checkpoint.tensors import WEIGHT_FILES
from tinychat.errors import HubError, TinychatError
from tinychat.json_file import one_line
from tinychat.models.architectures import read_config
from tinychat.models.embedder import read_embedder
from tinychat.models.ranker import read_ranker

# In order of preference; each pattern reaches the files that the index of that format lists.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
_SECONDS_FOR_A_LISTING = 30.0
_SECONDS_BETWEEN_LOOKS, _SECONDS_TO_STOP = 0.2, 5.0
BeforeWeights = Callable[[Path, int, Path], None]
"""Called with (folder, bytes to download, cache) when all but the weights is there."""
Progress = Callable[[int, int], None]
"""Called with (done, total)."""
_STEPS = 1000
ALLOW_PLAIN_HTTP = "TINYCHAT_PLAIN_HTTP"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# The client takes the first of these that is there for the name of the file.
_ENTITY_TAGS = ("X-Linked-Etag", "ETag")
_COMMIT = "X-Repo-Commit"
_BRANCH = "main"


def fetch(repo_id: str) -> Path:
    """Download a checkpoint as `fetching` does, and return its folder once all of it is there."""
    with checked_answers, _explained(repo_id):
        folder, missing = _begin(repo_id)
        _download(repo_id, folder.name, missing)
        return folder


def fetch_adapter(repo_id: str) -> Path:
    """Download an adapter, and return its folder; HubError for a repository without one."""
    with checked_answers, _explained(repo_id):
        names = _list_files(repo_id)
        weights = [name for name in ADAPTER_WEIGHTS if name in names]
        if ADAPTER_CONFIG not in names or not weights:
            raise HubError(f"{repo_id} is not an adapter: expected {EXPECTED}")
        return _download(repo_id, _BRANCH, [ADAPTER_CONFIG, weights[0]])


@contextmanager
def fetching(repo_id: str, before_weights: BeforeWeights | None = None) -> Iterator[tuple[Path, Arrivals]]:
    """Download a checkpoint into the hub's own cache, only the files that are needed.

    The configuration comes first, so that a model that is not supported is refused before its weights are downloaded,
    and the weights last. Interrupted downloads are continued; files in the cache need no network.

    Yields a checkpoint folder for `open_checkpoint`, once its text files and the first shard of its weights are there,
    and the arrivals of its other shards. The download ends with the block. Any failure, an answer that no hub gives,
    and plain http to another machine, is a HubError.
    """
    with checked_answers:
        with _explained(repo_id):
            folder, missing = _begin(repo_id, before_weights)
        arrivals = Arrivals(repo_id, folder, missing)
        try:
            yield folder, arrivals
        finally:
            arrivals.stop()


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    try:
        yield
    except TinychatError:
        raise
    # The library lets through whatever its HTTP client raises, and that client has changed twice.
    except Exception as error:
        raise HubError(_explain(repo_id, error)) from error


def _begin(repo_id: str, before_weights: BeforeWeights | None = None) -> tuple[Path, dict[str, int]]:
    """Download all up to the first shard; return the folder, and the names of the other shards with their sizes."""
    from huggingface_hub import constants, try_to_load_from_cache

    names = _list_files(repo_id)
    if "config.json" not in names and ADAPTER_CONFIG in names:
        raise HubError(use_of(repo_id))
    if "config.json" not in names:
        advice = _advice(repo_id)
        raise HubError(f"{repo_id} has no config.json, so it is not a checkpoint in the Hugging Face layout; {advice}")
    folder = _download(repo_id, _BRANCH, ["config.json"])
    read_config(folder / "config.json")
    weights = _weights(names)
    if not weights:
        expected = ", ".join(WEIGHT_FILES)
        raise HubError(f"{repo_id} has no weights that can be read (expected one of {expected}); {_advice(repo_id)}")
    # The folder is named by its commit: all parts come from the same one.
    _download(repo_id, folder.name, [name for name in TEXT_FILES if name in names])
    read_embedder(folder)
    read_ranker(folder)
    missing = [
        name for name in weights if not isinstance(try_to_load_from_cache(repo_id, name, revision=folder.name), str)
    ]
    if before_weights is not None:
        before_weights(folder, sum(names[name] for name in missing), Path(constants.HF_HUB_CACHE))
    indexes = [name for name in missing if name.endswith(".index.json")]
    shards = [name for name in missing if name not in indexes]
    _download(repo_id, folder.name, [*indexes, *shards[:1]])
    return folder, {name: names[name] for name in shards[1:]}


def _weights(names: Mapping[str, int]) -> list[str]:
    """Return the weight files of a repository, in the format that is read; none if there is none."""
    patterns = next((patterns for patterns in _WEIGHTS if names.keys() & set(patterns[:2])), ())
    return sorted(name for name in names if "/" not in name and any(fnmatch(name, p) for p in patterns))


def download_size(repo_id: str, seconds: float) -> int | None:
    """Return the bytes of a repository's weights on the hub; None where it does not answer in time, or has none."""
    # Imported before the time counts: it takes a while.
    import huggingface_hub  # noqa: F401

    found: list[int] = []

    def ask() -> None:
        # Whatever goes wrong, there is nothing to download.
        with suppress(Exception), checked_answers:
            names = _listing(repo_id, seconds)
            found.append(sum(names[name] for name in _weights(names)))

    # A name that cannot be resolved may take longer than any limit of the client.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found and found[0] else None


class Arrivals:
    """Shards that are downloaded in the background, one after the other.

    `folder` is that of the snapshot, named by its commit; `sizes` has the bytes of each shard by its name, 0 where the
    hub does not say.
    """

    def __init__(self, repo_id: str, folder: Path, sizes: Mapping[str, int]) -> None:
        self._repo_id, self._folder, self._sizes = repo_id, folder, sizes
        self._arrived = 0
        self._show: Callable[[], object] = lambda: None
        self._error: HubError | None = None
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._checks = ExitStack()
        if sizes:
            # The thread may outlive the block that began it, and must not go on unchecked.
            self._checks.enter_context(checked_answers)
            self._thread.start()

    def __call__(self, path: Path) -> None:
        """Wait until a shard is there; a download that has failed is a HubError."""
        with self._changed:
            while not path.exists():
                if self._error is not None:
                    raise self._error
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
                self._show()

    def beside(self, progress: Progress | None) -> Progress | None:
        """Return a progress for the reader of the shards that reports to `progress`, with their download as one half.

        It does so again and again during a wait, too.
        """
        total = sum(self._sizes.values())
        if progress is None or not total:
            return progress
        read = 0.0

        def show() -> None:
            arrived = min(1.0, self._arrived / total)
            progress(round(_STEPS * (arrived + read) / 2), _STEPS)

        def report(done: int, steps: int) -> None:
            nonlocal read
            read = done / max(steps, 1)
            show()

        self._show = show
        return report

    def stop(self) -> None:
        """End the download; a thread that waits for the hub ends when that answers."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_SECONDS_TO_STOP)

    def _run(self) -> None:
        try:
            with self._checks, _explained(self._repo_id):
                finished = 0
                for name, size in self._sizes.items():
                    _download(self._repo_id, self._folder.name, [name], tqdm_class=self._silent_bar(finished))
                    self._arrived = finished = finished + size
        except HubError as error:
            self._error = error
        finally:
            with self._changed:
                self._changed.notify_all()

    def _silent_bar(self, finished: int) -> type:
        """Return a hidden bar for the hub's client, which counts bytes, and ends a download that is to stop."""
        from huggingface_hub.utils.tqdm import tqdm

        arrivals, stopped = self, self._stopped

        class SilentBar(tqdm):
            def __init__(self, *arguments: Any, **settings: Any) -> None:
                super().__init__(*arguments, **{**settings, "disable": True})  # type: ignore[no-untyped-call]
                # The bytes of an earlier try.
                arrivals._arrived = finished + int(settings.get("initial") or 0)

            def update(self, n: float | None = 1) -> None:
                if stopped.is_set():
                    raise HubError("the download was stopped")
                arrivals._arrived += int(n or 0)

        return SilentBar


def _list_files(repo_id: str) -> dict[str, int]:
    """Return the files of a repository with their sizes; those in the cache where the hub does not answer."""
    from huggingface_hub import errors

    try:
        return _listing(repo_id, _SECONDS_FOR_A_LISTING)
    except (TinychatError, errors.RevisionNotFoundError):
        raise
    except Exception as error:
        return dict.fromkeys(_list_cached_files(repo_id, error), 0)


def _listing(repo_id: str, seconds: float) -> dict[str, int]:
    """Return the files of a repository on the hub with their sizes; names that no file can have are a HubError."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    listing = api.model_info(repo_id, revision=_BRANCH, timeout=seconds, files_metadata=True).siblings
    sizes = {file.rfilename: file.size or 0 for file in listing or ()}
    for name in sizes:
        check_file_name(name)
    return sizes


def _list_cached_files(repo_id: str, reason: Exception) -> set[str]:
    """Return the names of a repository's files in the cache, if its weights, which come last, are there."""
    from huggingface_hub import errors, snapshot_download

    with suppress(errors.LocalEntryNotFoundError):
        names = set(os.listdir(snapshot_download(repo_id, revision=_BRANCH, local_files_only=True)))
        if names & set(WEIGHT_FILES):
            return names
    if isinstance(reason, errors.HfHubHTTPError):
        raise reason
    raise errors.LocalEntryNotFoundError(str(reason)) from reason


def _download(repo_id: str, revision: str, names: Iterable[str], **settings: Any) -> Path:
    """Download the files that are not in the cache yet, one after the other; return the folder of the last."""
    from huggingface_hub import hf_hub_download

    folder = Path()
    for name in names:
        folder = Path(hf_hub_download(repo_id, name, revision=revision, endpoint=_endpoint(), **settings)).parent
    return folder


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _advice(repo_id: str) -> str:
    # The files of the repository were not listed; GGUF repositories usually say so in their names.
    if "gguf" in repo_id.lower():
        return "download its GGUF file and give the path of that, or give the repository that it was made from"
    return "give the repository that it was made from"


def _explain(repo_id: str, error: Exception) -> str:
    from huggingface_hub import errors

    name = one_line(repo_id)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return f"{name!r} is not a repo id; expected owner/name"
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return f"{name} is gated: accept its terms on its page, then set HF_TOKEN to a token of your account"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no branch {_BRANCH}, or it was replaced just now; run the command again"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return f"{name} lists a file that it does not have; try again later"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return (
            f"{name} does not exist on the hub, or is private, and there is no folder of this name here;"
            " check the spelling, or set HF_TOKEN"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        advice = "check the network and HF_ENDPOINT, or the path if a folder is meant"
        return f"{name} is not in the cache and the hub cannot be reached; {advice}"
    reason = one_line(str(error)) or type(error).__name__
    return f"{name} cannot be downloaded: {reason}; run the command again to continue"


class _CheckedAnswers:
    """Checks of each request and each answer of the hub's client inside the block, those after a redirect too.

    A `HubError` is raised inside the client for the first that is not as it must be. Of several blocks that overlap, in
    whatever threads, the last to end restores the client.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._previous: Callable[[], Any]

    def __enter__(self) -> None:
        # Imported here: it takes a while.
        from huggingface_hub import set_client_factory
        from huggingface_hub.utils import _http

        with self._lock:
            if not self._inside:
                # The calling program may have set its own, for a proxy perhaps.
                self._previous = _http._GLOBAL_CLIENT_FACTORY
                set_client_factory(self._checking_client)
            self._inside += 1

    def __exit__(self, *_exception: object) -> None:
        from huggingface_hub import set_client_factory

        with self._lock:
            self._inside -= 1
            if not self._inside:
                set_client_factory(self._previous)

    def _checking_client(self) -> Any:
        client = self._previous()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [_check_request, *hooks.get("request", [])],
            "response": [_check_answer, *hooks.get("response", [])],
        }
        return client


checked_answers = _CheckedAnswers()


def check_file_name(name: str) -> None:
    """Refuse the name of a file in a listing that could leave its folder, or write on a terminal."""
    parts = name.split("/")
    leaves = any(part in ("", ".", "..") for part in parts) or "\\" in name or ":" in parts[0]
    if leaves or not name.isprintable():
        raise HubError(f"the hub lists a file of the name {one_line(name, 60)!r}, which no file can have; refused")


def _check_request(request: Any) -> None:
    url = request.url
    if url.scheme == "https" or _is_loopback(url.host) or os.environ.get(ALLOW_PLAIN_HTTP) == "1":
        return
    raise HubError(
        f"{one_line(f'{url.scheme}://{url.host}')} is not encrypted, so anybody on the way could change the model; "
        f"use https, or set {ALLOW_PLAIN_HTTP}=1 to take that risk"
    )


def _check_answer(response: Any) -> None:
    """Check the headers that become names: those of answers to `HEAD`, and a commit in any answer.

    Other answers, as that of a content network after a redirect, may have any entity tag.
    """
    headers, names = response.headers, [_COMMIT]
    if response.request.method == "HEAD" and response.status_code < 400:
        names.append(next((tag for tag in _ENTITY_TAGS if headers.get(tag)), _COMMIT))
    for name in names:
        value = headers.get(name)
        if value is not None and not _is_name(value.removeprefix("W/").strip('"')):
            raise HubError(
                f"{one_line(response.url.host)} answered with {name}: {one_line(value, 60)}, which no hub does; "
                "refused: check HF_ENDPOINT and the network"
            )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and text != "."


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
