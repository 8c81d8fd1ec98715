"""The pickle inside a PyTorch checkpoint, read as data.

A pickle is a program for a small stack machine, and Python's own machine imports and calls whatever
the program names. This one knows only the instructions that ``torch.save`` writes for a dictionary of
tensors. A global stays a pair of strings, calling one builds a record, and any other name ends the
reading: there is nothing here that could run foreign code.
"""

import pickletools
import warnings
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeGuard

from tinychat.errors import CheckpointError
from tinychat.json_file import one_line

STORAGE_DTYPES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of `size` values in the archive's entry ``data/<key>``."""

    key: str
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor as a strided window of a storage; `offset` and `stride` count values, unchecked."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Global(NamedTuple):
    module: str
    name: str


_ORDERED_DICT = _Global("collections", "OrderedDict")
_REBUILD_TENSOR = _Global("torch._utils", "_rebuild_tensor_v2")
_REBUILD_PARAMETER = _Global("torch._utils", "_rebuild_parameter")
_KNOWN_GLOBALS = {
    _ORDERED_DICT,
    _REBUILD_TENSOR,
    _REBUILD_PARAMETER,
    *(_Global("torch", name) for name in STORAGE_DTYPES),
}

_MARK: Final = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK, "EMPTY_TUPLE": ()}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip


def read_tensor_pickle(data: bytes, source: str) -> dict[str, TensorRecord]:
    """Return the tensors of a pickled dictionary by name, without other values; `source` is the file, for errors."""
    machine = _Machine(source)
    try:
        with warnings.catch_warnings():
            # pickletools warns about backslashes in damaged names, on a stream that is not ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            for opcode, argument, _ in pickletools.genops(data):
                machine.step(opcode.name, argument)
        result = machine.stack.pop()
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        reason = one_line(str(error)) if type(error) is ValueError else "its pickle is inconsistent"
        raise CheckpointError(f"{source} is damaged: {reason}") from None
    if not isinstance(result, dict):
        raise CheckpointError(f"{source} holds no dictionary of tensors")
    return {name: value for name, value in result.items() if isinstance(value, TensorRecord)}


class _Machine:
    """The stack and the memo. A failing step raises what the failing list or dictionary raises."""

    def __init__(self, source: str) -> None:
        self.stack: list[object] = []
        self._memo: dict[object, object] = {}
        self._source = source

    def step(self, name: str, argument: object) -> None:
        stack = self.stack
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _ if name in _LITERALS:
                stack.append(argument)
            case _ if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(stack.pop() for _ in range(int(name[-1])))[::-1])
            case "TUPLE":
                stack.append(tuple(self._pop_to_mark()))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "EMPTY_DICT":
                stack.append({})
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._set_items([key, value])
            case "SETITEMS":
                self._set_items(self._pop_to_mark())
            case "GLOBAL":
                stack.append(self._known_global(*str(argument).split(" ", 1)))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(self._known_global(module, attribute))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(function, arguments))
            case "BUILD":
                stack.pop()  # attributes of a dictionary, such as a state_dict's _metadata
            case _:
                raise ValueError(f"the pickle instruction {name} has no place in a dictionary of tensors")

    def _pop_to_mark(self) -> list[object]:
        items: list[object] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _set_items(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("items are set on something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise ValueError("a key is not a string")
            target[key] = value

    def _known_global(self, module: object, name: object) -> _Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a global is not named by strings")
        found = _Global(module, name)
        if found not in _KNOWN_GLOBALS:
            raise CheckpointError(
                f"{self._source} asks for {one_line(f'{module}.{name}')}, which is not a tensor;"
                " refused, and nothing was run: use a safetensors version of this checkpoint"
            )
        return found


def _call(function: object, arguments: object) -> object:
    """Return the record of the object that torch would build."""
    if not isinstance(arguments, tuple):
        raise ValueError("a call has no arguments")
    if function == _ORDERED_DICT and not arguments:
        return {}
    if function == _REBUILD_TENSOR and len(arguments) >= 4:
        return _tensor(*arguments[:4])
    if function == _REBUILD_PARAMETER and arguments and isinstance(arguments[0], TensorRecord):
        return arguments[0]
    raise ValueError("a tensor is described in an unknown way")


def _storage(persistent_id: object) -> Storage:
    match persistent_id:
        case ("storage", _Global(name=kind), str(key), _, size) if kind in STORAGE_DTYPES:
            if not _is_size(size):
                raise ValueError("a storage has no size")
            return Storage(key, STORAGE_DTYPES[kind], size)
    raise ValueError("a storage is described in an unknown way")


def _tensor(storage: object, offset: object, shape: object, stride: object) -> TensorRecord:
    if not isinstance(storage, Storage) or not isinstance(shape, tuple) or not isinstance(stride, tuple):
        raise ValueError("a tensor is described in an unknown way")
    if not all(map(_is_size, (offset, *shape, *stride))) or not len(shape) == len(stride) <= 8:
        raise ValueError("a tensor's sizes are not valid")
    return TensorRecord(storage, int(offset), shape, stride)  # type: ignore[call-overload]


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 62
