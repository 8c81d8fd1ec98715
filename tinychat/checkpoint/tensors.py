"""The tensors of a checkpoint folder, read lazily, whatever its files are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

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
    """Let shards of a folder be missing within the block: each is waited for once it is needed. Its index is there."""
    token = _arriving.set((folder, wait))
    try:
        yield
    finally:
        _arriving.reset(token)


class Tensor(ABC):
    """A tensor of a checkpoint: its numbers, and its codes where its format has any."""

    path: Path  # of the file, for errors
    arrival: int = 0  # larger for tensors of shards that arrive later; 0 for those that are there

    def _comes_with(self, *tensors: "Tensor") -> None:
        """Have the file, and the arrival, of the tensors that this one is computed from."""
        self.path, self.arrival = tensors[0].path, max(tensor.arrival for tensor in tensors)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape, without a look at the data."""

    @abstractmethod
    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``, float32, float16 or bfloat16 in C order; writing never reaches the file."""

    @property
    def kind(self) -> str:
        """The format's name of the type, as "Q4_K", "GPTQ" or "float16"."""
        return str(self.read(0, 0).dtype)

    @property
    def form(self) -> Form | None:
        """Form that holds the codes exactly; None where only numbers can be read."""
        return None

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form: codes of its bits, in its groups and spans."""
        raise TypeError(f"a tensor of {self.path} has no codes")

    def read_integers(self) -> NDArray[Any]:
        """Return all of a tensor of whole numbers of 8, 32 or 64 bits, or of float8."""
        raise CheckpointError(f"{self.path}: a tensor is no list of whole numbers: download it again")


class Derived(Tensor):
    """A tensor that is computed from another one, and with others beside it; shape and type are the first one's."""

    def __init__(self, tensor: Tensor, *others: Tensor) -> None:
        self._comes_with(tensor, *others)
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the other tensor."""
        return self._tensor.shape

    @property
    def kind(self) -> str:
        """Name of the other tensor's type."""
        return self._tensor.kind


class _FileTensor(Tensor):
    """A tensor of a file, under its name there."""

    def __init__(self, file: SafetensorsFile | PytorchFile, name: str) -> None:
        self.path, self._file, self._name = file.path, file, name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._file.shape(self._name)

    def read(self, start: int, stop: int) -> FloatArray:
        return self._file.read(self._name, start, stop)

    def read_integers(self) -> NDArray[Any]:
        return self._file.read_integers(self._name)


class Tensors:
    """The tensors of a checkpoint folder by their names."""

    def __init__(self, folder: Path, by_name: dict[str, Tensor]) -> None:
        self.folder, self.by_name = folder, by_name

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.by_name[name]
        except KeyError:
            raise CheckpointError(f"{self.folder} has no tensor {one_line(name)!r}") from None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Return rows ``start..stop-1`` of a tensor, all by default: float32, float16 or bfloat16, C order."""
        tensor = self[name]
        rows = tensor.shape[0] if tensor.shape else 1
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            what = f"tensor {one_line(name)!r} has {rows} rows; {start} to {stop} were asked for"
            raise CheckpointError(f"{tensor.path}: {what}")
        return tensor.read(start, stop)

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Check that a tensor is there, in a shape: of a shard that has yet to arrive, once it has."""
        if name not in self.by_name:
            raise CheckpointError(
                f"{self.folder} has no tensor {name}: the checkpoint is incomplete, download it again"
            )
        tensor = self.by_name[name]
        if isinstance(tensor, _ArrivingTensor):
            tensor.shard.expect(name, shape)
        else:
            _check_shape(self.folder, name, tensor.shape, shape)


class _ArrivingShard:
    """A shard that is still on its way: `position` counts from 1, `promised` are its tensors by the index."""

    def __init__(self, path: Path, position: int, promised: frozenset[str], wait: Wait) -> None:
        self.path, self.position, self.promised = path, position, promised
        self._wait = wait
        self._expected: dict[str, tuple[int, ...]] = {}
        self._tensors: dict[str, Tensor] | None = None

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Check a tensor's shape, once it is there."""
        if self._tensors is None:
            self._expected[name] = shape
        else:
            _check_shape(self.path.parent, name, self._tensors[name].shape, shape)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, waiting for the shard."""
        if self._tensors is None:
            self._wait(self.path)
            found = open_weights(self.path)
            _check_promises(self.path, self.promised, found)
            for expected, shape in self._expected.items():
                _check_shape(self.path.parent, expected, found[expected].shape, shape)
            self._tensors = found
        return self._tensors[name]


class _ArrivingTensor(Tensor):
    """A tensor of a shard that is still on its way."""

    def __init__(self, shard: _ArrivingShard, name: str) -> None:
        self.path, self.arrival = shard.path, shard.position
        self.shard, self._name = shard, name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shard.tensor(self._name).shape

    def read(self, start: int, stop: int) -> FloatArray:
        return self.shard.tensor(self._name).read(start, stop)

    def read_integers(self) -> NDArray[Any]:
        return self.shard.tensor(self._name).read_integers()


def _check_shape(folder: Path, name: str, found: tuple[int, ...], asked: tuple[int, ...]) -> None:
    if found != asked:
        raise CheckpointError(
            f"{folder}: {name} has shape {list(found)}, config.json asks for {list(asked)}:"
            " they are of different models, download both again"
        )


def _check_promises(path: Path, promised: frozenset[str], found: dict[str, Tensor]) -> None:
    for name in sorted(promised - found.keys()):
        raise CheckpointError(f"{path.parent}: tensor {one_line(name)!r} is not in {path.name} as the index promises")


def open_tensors(folder: Path) -> Tensors:
    """Open the weights of a checkpoint folder: safetensors or .bin, in one file or in shards."""
    for name in WEIGHT_FILES:
        path = folder / name
        if path.exists():
            return Tensors(folder, _open_shards(path) if name.endswith(".index.json") else open_weights(path))
    raise CheckpointError(f"{folder} holds no weights; expected one of {', '.join(WEIGHT_FILES)}")


def _open_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must be an object from tensors to files")
    paths = {name: _shard_path(index, shard) for name, shard in weight_map.items()}
    folder, wait = _arriving.get() or (None, None)
    found: dict[str, Tensor] = {}
    for position, path in enumerate(sorted({*paths.values()}), 1):
        promised = frozenset(name for name, shard in paths.items() if shard == path)
        if wait is not None and folder == index.parent and not path.exists():
            shard = _ArrivingShard(path, position, promised, wait)
            found |= {name: _ArrivingTensor(shard, name) for name in promised}
        else:
            tensors = open_weights(path)
            _check_promises(path, promised, tensors)
            found |= {name: tensors[name] for name in promised}
    return found


def _shard_path(index: Path, shard: object) -> Path:
    """Return the path of a shard, named by its bare file name: an index must not reach out of its folder."""
    if not isinstance(shard, str) or not shard.endswith((".safetensors", ".bin")) or len(shard) > _LONGEST_NAME:
        raise CheckpointError(f"{index}: {one_line(repr(shard), 60)} is not the name of a shard")
    if any(c in '/\\:"<>|?*' or not c.isprintable() for c in shard):
        raise CheckpointError(f"{index}: shard {one_line(shard)!r} lies outside the folder; refused")
    return index.parent / shard


def open_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, safetensors or .bin, by their names."""
    if not path.exists():
        raise CheckpointError(f"{path} is missing, though the index lists it; download it again")
    try:
        with open_regular(path) as stream:
            beginning = stream.read(len(_LFS_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    if beginning == _LFS_POINTER:
        raise CheckpointError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`")
    file = PytorchFile(path) if path.suffix == ".bin" else SafetensorsFile(path)
    return {name: _FileTensor(file, name) for name in file.names()}
