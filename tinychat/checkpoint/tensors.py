"""All tensors of a checkpoint folder behind one interface, whatever its files are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.pytorch_file import PytorchFile
from tinychat.checkpoint.safetensors_file import SafetensorsFile
from tinychat.errors import CheckpointError
from tinychat.files import open_regular
from tinychat.json_file import one_line, read_json_object
from tinychat.models.passthrough import Form

# In transformers' order of preference.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_LONGEST_NAME = 200
_LFS_POINTER = b"version https://git-lfs"


Wait = Callable[[Path], None]
"""Called with the path of a shard; returns once it is there."""
_arriving: ContextVar[tuple[Path, Wait] | None] = ContextVar("_arriving", default=None)


@contextmanager
def arriving(folder: Path, wait: Wait) -> Iterator[None]:
    """Let shards of a folder be missing within the block, as those of a download: each is waited for once it is needed.

    Parameters
    ----------
    folder : Path
        Its index is there.
    wait : callable
        See `Wait`.
    """
    token = _arriving.set((folder, wait))
    try:
        yield
    finally:
        _arriving.reset(token)


class TensorFile(Protocol):
    """What the readers of both formats offer; `read` and `shape` take names of `names` only."""

    path: Path

    def names(self) -> frozenset[str]: ...  # noqa: D102

    def shape(self, name: str) -> tuple[int, ...]: ...  # noqa: D102

    def read(self, name: str, start: int, stop: int) -> FloatArray: ...  # noqa: D102


@runtime_checkable
class CodedFile(TensorFile, Protocol):
    """What a reader offers besides if some of its tensors are codes (`checkpoint.group_codes`)."""

    def kind(self, name: str) -> str:
        """Return what the format calls the type of a tensor, as "Q4_K" or "GPTQ"."""

    def form(self, name: str) -> Form | None:
        """Return how a tensor can be kept exactly; None where it cannot: then its numbers are read."""

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form: codes of its bits, groups and spans of its size.

        `read` gives their values.
        """


def kind_of(file: TensorFile, name: str) -> str:
    """Return what the checkpoint's format calls the type of a tensor."""
    return file.kind(name) if isinstance(file, CodedFile) else str(file.read(name, 0, 0).dtype)


class Tensors:
    """The tensors of one or several files, read lazily.

    Parameters
    ----------
    folder : Path
        For errors.
    files : dict
        The file of each tensor.
    """

    def __init__(self, folder: Path, files: dict[str, TensorFile]) -> None:
        self.folder = folder
        self.files = files

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self.files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without touching its data.

        Raises
        ------
        CheckpointError
            If there is no such tensor.
        """
        return self._file(name).shape(name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Read rows ``start..stop-1`` of a tensor, all of them by default.

        Returns
        -------
        float32, float16 or bfloat16 array [stop - start, ...], C order
            A view of mapped memory wherever the file allows; writing to it never reaches the file.

        Raises
        ------
        CheckpointError
            If there is no such tensor, it has another type, or the rows are not in it.
        """
        file = self._file(name)
        shape = file.shape(name)
        rows = shape[0] if shape else 1
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise CheckpointError(
                f"{file.path}: tensor {one_line(name)!r} has {rows} rows; {start} to {stop} were asked for"
            )
        return file.read(name, start, stop)

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Check that a tensor is there, in a shape: of a shard that has yet to arrive, once it has.

        Raises
        ------
        CheckpointError
            If it is not.
        """
        if name not in self.files:
            raise CheckpointError(
                f"{self.folder} has no tensor {name}: the checkpoint is incomplete, download it again"
            )
        file = self.files[name]
        if isinstance(file, ArrivingFile) and not file.has_arrived:
            file.expected[name] = shape
        else:
            _check_shape(self.folder, name, file.shape(name), shape)

    def arrival(self, name: str) -> int:
        """Return a number that is larger for tensors of shards that arrive later; 0 for those that are there."""
        file = self._file(name)
        return file.position if isinstance(file, ArrivingFile) else 0

    def read_integers(self, name: str) -> NDArray[Any]:
        """Read a tensor of whole numbers of 8, 32 or 64 bits.

        Raises
        ------
        CheckpointError
            If there is no such tensor, or it is of another type or in a file of another format.
        """
        file = self._file(name)
        if isinstance(file, ArrivingFile):
            file = file.arrived()
        if not isinstance(file, SafetensorsFile):
            raise CheckpointError(
                f"{file.path}: packed weights are read from safetensors alone: convert the file to it"
            )
        return file.read_integers(name)

    def form(self, name: str) -> Form | None:
        """Return how the codes of a tensor can be kept exactly; None where it has none, or not such."""
        file = self._file(name)
        return file.form(name) if isinstance(file, CodedFile) else None

    def kind(self, name: str) -> str:
        """Return what the checkpoint's format calls the type of a tensor."""
        return kind_of(self._file(name), name)

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Read rows ``start..stop-1`` of a tensor that has a form, as codes."""
        file = self._file(name)
        if not isinstance(file, CodedFile):
            raise CheckpointError(f"{file.path}: tensor {one_line(name)!r} has no codes")
        return file.read_codes(name, start, stop)

    def _file(self, name: str) -> TensorFile:
        try:
            return self.files[name]
        except KeyError:
            raise CheckpointError(f"{self.folder} has no tensor {one_line(name)!r}") from None


class ArrivingFile:
    """A shard that is still on its way: what is asked of it waits.

    Parameters
    ----------
    path : Path
    position : int
        Which one it is, from 1 on.
    promised : frozenset of str
        The tensors that it has, as the index says.
    wait : callable
        See `Wait`.

    Attributes
    ----------
    expected : dict
        Shapes to check once it is there.
    """

    def __init__(self, path: Path, position: int, promised: frozenset[str], wait: Wait) -> None:
        self.path, self.position = path, position
        self.expected: dict[str, tuple[int, ...]] = {}
        self._promised, self._wait = promised, wait
        self._file: TensorFile | None = None

    @property
    def has_arrived(self) -> bool:
        """Whether nothing has to be waited for."""
        return self._file is not None

    def names(self) -> frozenset[str]:
        """Return the names of the tensors that were promised."""
        return self._promised

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.arrived().shape(name)

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        return self.arrived().read(name, start, stop)

    def arrived(self) -> TensorFile:
        """Wait for the shard and return it."""
        if self._file is None:
            self._wait(self.path)
            file = _open_file(self.path)
            for name in self._promised:
                _check_promise(self.path, name, file)
            for name, shape in self.expected.items():
                _check_shape(self.path.parent, name, file.shape(name), shape)
            self._file = file
        return self._file


def _check_shape(folder: Path, name: str, found: tuple[int, ...], asked: tuple[int, ...]) -> None:
    if found != asked:
        raise CheckpointError(
            f"{folder}: {name} has shape {list(found)}, config.json asks for {list(asked)}:"
            " they are of different models, download both again"
        )


def _check_promise(path: Path, name: str, file: TensorFile) -> None:
    if name not in file.names():
        raise CheckpointError(f"{path.parent}: tensor {one_line(name)!r} is not in {path.name} as the index promises")


def open_tensors(folder: Path) -> Tensors:
    """Open the weights of a checkpoint folder: safetensors or .bin, in one file or in shards.

    Raises
    ------
    CheckpointError
        If there are none, a shard is missing or outside the folder, or a file is damaged.
    """
    for name in WEIGHT_FILES:
        path = folder / name
        if path.exists():
            files = _open_shards(path) if name.endswith(".index.json") else _open_single(path)
            return Tensors(folder, files)
    raise CheckpointError(f"{folder} holds no weights; expected one of {', '.join(WEIGHT_FILES)}")


def _open_single(path: Path) -> dict[str, TensorFile]:
    file = _open_file(path)
    return dict.fromkeys(file.names(), file)


def _open_shards(index: Path) -> dict[str, TensorFile]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must be an object from tensors to files")
    paths = {tensor: _shard_path(index, shard) for tensor, shard in weight_map.items()}
    folder, wait = _arriving.get() or (None, None)
    shards: dict[Path, TensorFile] = {}
    for position, path in enumerate(sorted({*paths.values()}), 1):
        if wait is not None and folder == index.parent and not path.exists():
            promised = frozenset(tensor for tensor, place in paths.items() if place == path)
            shards[path] = ArrivingFile(path, position, promised, wait)
        else:
            shards[path] = _open_file(path)
    for tensor, path in paths.items():
        _check_promise(path, tensor, shards[path])
    return {tensor: shards[path] for tensor, path in paths.items()}


def _shard_path(index: Path, shard: object) -> Path:
    """Only a bare file name is accepted: an index must not reach out of its folder."""
    if not isinstance(shard, str) or not shard.endswith((".safetensors", ".bin")) or len(shard) > _LONGEST_NAME:
        raise CheckpointError(f"{index}: {one_line(repr(shard), 60)} is not the name of a shard")
    if any(c in '/\\:"<>|?*' or not c.isprintable() for c in shard):
        raise CheckpointError(f"{index}: shard {one_line(shard)!r} lies outside the folder; refused")
    return index.parent / shard


def _open_file(path: Path) -> TensorFile:
    if not path.exists():
        raise CheckpointError(f"{path} is missing, though the index lists it; download it again")
    try:
        with open_regular(path) as file:
            beginning = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    if beginning == _LFS_POINTER:
        raise CheckpointError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`")
    return PytorchFile(path) if path.suffix == ".bin" else SafetensorsFile(path)
