"""The model folder: a checkpoint's text files, ``tinychat.json``, and ``model.safetensors``, which is mapped.

``tinychat.json`` describes the folder::

    {"format": 2, "source": "owner/name",
     "quantization": {"method": "int4", "group_size": 32, "int8": [], "frequent": 0}, ...}

Of passthrough quantization ("native" in the program, "kept" in the file), the format is 4, and "quantization" has
"kept", an object by linear, of codes of 1, 2, 4 or 8 bits::

    {"forms": [{"bits": 4, "numbers": "F16", "group": 32, "span": 0, "offsets": true, "table": false}],
     "bits": [[4, 4, 4], ...]}

In format 3 there are no tables, and codes of four bits have offsets whatever "offsets" says.

``model.safetensors`` (github.com/huggingface/safetensors: 8 bytes of header length, a JSON header, the data) holds the
tensors of `models.layout.tensor_specs`, byte for byte as the kernels read them.
"""

import hashlib
import json
import mmap
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import CheckpointError, ModelFolderError, SettingError
from tinychat.files import open_regular, read_small
from tinychat.json_file import read_json_object
from tinychat.models.architectures import read_config
from tinychat.models.config import ModelConfig
from tinychat.models.layout import LINE, Quantization, TensorSpec, tensor_specs
from tinychat.models.passthrough import NATIVE, STORED_NATIVE, dtype_named, read_linear
from tinychat.models.varied_layers import LAYER_INPUTS

FORMAT, OLDER_PASSTHROUGH_FORMAT, PASSTHROUGH_FORMAT = 2, 3, 4
DESCRIPTION = "tinychat.json"
WEIGHTS = "model.safetensors"
# Files that `model_fingerprint` reads.
_WEIGHT_FILES = ".safetensors"
_SMALL_FILES = (".json", ".jinja", ".model")
_MAX_SMALL_FILE = 256 << 20
# Of a weight file: its beginning, and pages spread over all of it. To read the whole would take longer than to load it.
_PAGE, _HEADER_BYTES, _SPREAD_PAGES = 4096, 64 << 10, 256
# Numba knows no float16 on CPUs.
MAPPED_AS: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "F16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
}


@dataclass(frozen=True)
class ModelFolder:
    """An opened model folder; the tensors are views of the mapped file."""

    path: Path
    config: ModelConfig
    quantization: Quantization
    tensors: dict[str, NDArray[np.generic]]


def header_of(specs: Mapping[str, TensorSpec]) -> tuple[bytes, dict[str, int]]:
    """Return the header of a weight file, and the offset of each tensor's data in the file."""
    entries: dict[str, object] = {"__metadata__": {"format": "tinychat"}}
    begin, starts = 0, {}
    for name, spec in specs.items():
        starts[name], end = begin, begin + spec.bytes
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % LINE)
    base = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: base + start for name, start in starts.items()}


def model_fingerprint(folder: Path) -> str:
    """Return a digest of a model folder: its small files; size, time stamp, header and some pages of its weights."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*")):
        if file.suffix == _WEIGHT_FILES:
            with open_regular(file) as stream:
                status = os.fstat(stream.fileno())
                digest.update(f"\n{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
                for part in _samples(stream, status.st_size):
                    digest.update(part)
        elif file.suffix in _SMALL_FILES:
            data = read_small(file, _MAX_SMALL_FILE)
            digest.update(f"\n{file.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _samples(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the beginning of a weight file and pages at equal distances: a fine-tune changes some of them."""
    yield stream.read(_HEADER_BYTES)
    for page in range(_SPREAD_PAGES):
        stream.seek(size * page // _SPREAD_PAGES)
        yield stream.read(_PAGE)


def open_model_folder(path: Path) -> ModelFolder:
    """Open a model folder: check its description, its configuration, and the header and size of the weight file."""
    try:
        quantization = read_description(path)
        config = read_config(path / "config.json")
    except CheckpointError as error:
        raise ModelFolderError(str(error)) from None
    try:
        specs = tensor_specs(config, quantization)
    except SettingError as error:
        raise ModelFolderError(f"{path / DESCRIPTION}: {error}: convert the model again") from None
    return ModelFolder(path, config, quantization, map_weights(path / WEIGHTS, specs))


def description_of(quantization: Quantization) -> dict[str, object]:
    """Return the entries of ``tinychat.json`` about the weights: format and quantization."""
    stored = asdict(quantization)
    dtype, linears = stored.pop("dtype"), dict(stored.pop("passthrough"))
    stored = {"method": STORED_NATIVE if dtype == NATIVE else dtype, **stored}
    if linears:
        stored["kept"] = linears
    return {"format": PASSTHROUGH_FORMAT if linears else FORMAT, "quantization": stored}


def read_description(path: Path) -> Quantization:
    """Read the quantization of the weights from ``tinychat.json``."""
    if not (path / DESCRIPTION).is_file():
        raise ModelFolderError(f"{path} is not a model folder (no {DESCRIPTION}): make one with `tinychat convert`")
    description = read_json_object(path / DESCRIPTION)
    if description.get("format") not in (FORMAT, OLDER_PASSTHROUGH_FORMAT, PASSTHROUGH_FORMAT):
        raise ModelFolderError(
            f"{path / DESCRIPTION} says format {description.get('format')!r}, this tinychat reads {FORMAT} to "
            f"{PASSTHROUGH_FORMAT}: convert the model again, or update tinychat"
        )
    try:
        return _quantization(description)
    except (TypeError, ValueError, KeyError):
        raise ModelFolderError(f'{path / DESCRIPTION} has no valid "quantization": convert the model again') from None
    except SettingError as error:
        raise ModelFolderError(f"{path / DESCRIPTION}: {error}") from None


def _quantization(description: Mapping[str, Any]) -> Quantization:
    stored, fields = description["quantization"], {"method", "group_size", "int8", "frequent"}
    is_older = description["format"] == OLDER_PASSTHROUGH_FORMAT
    if description["format"] != FORMAT:
        fields.add("kept")
    if not isinstance(stored, dict) or stored.keys() != fields:
        raise ValueError
    linears = stored.get("kept", {})
    return Quantization(
        dtype=dtype_named(stored["method"]),
        group_size=stored["group_size"],
        int8=tuple(stored["int8"]),
        frequent=stored["frequent"],
        passthrough=tuple((name, read_linear(value, is_older)) for name, value in linears.items()),
    )


def map_weights(file: Path, specs: dict[str, TensorSpec]) -> dict[str, NDArray[np.generic]]:
    """Map a weight file that must hold exactly the tensors of `specs`.

    It is mapped privately, as a read-only array is another type to Numba; nothing is ever written.
    """
    header, offsets = header_of(specs)
    size = len(header) + sum(spec.bytes for spec in specs.values())
    try:
        with open_regular(file) as stream:
            found = stream.read(len(header))
            actual = os.fstat(stream.fileno()).st_size
            if actual != size:
                raise ModelFolderError(f"{file} is damaged ({actual} bytes instead of {size}): convert the model again")
            if found != header:
                raise ModelFolderError(
                    f"{file} is damaged (other tensors than config.json asks for): convert the model again"
                )
            mapped = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelFolderError(f"{file} cannot be read ({error.strerror}): convert the model again") from None
    _ask_for_huge_pages(mapped)
    for name, spec in specs.items():
        if name.startswith(LAYER_INPUTS):
            _ask_for_few_pages(mapped, offsets[name], offsets[name] + spec.bytes)
    data = np.frombuffer(mapped, np.uint8)
    return {
        name: data[offsets[name] :][: spec.bytes].view(MAPPED_AS[spec.dtype]).reshape(spec.shape)
        for name, spec in specs.items()
    }


def _ask_for_huge_pages(mapped: mmap.mmap) -> None:
    """Ask the system for pages of 2 MB: a token reads all of the weights, far more than the tables of small pages hold.

    Pages of the file that are in memory already, as after a conversion, stay as they are.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)


def _ask_for_few_pages(mapped: mmap.mmap, start: int, stop: int) -> None:
    """Ask the system to read no more of a part than is looked at: of a large table, a token looks at a few pages."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform != "win32" and first < last:
        for advice in ("MADV_NOHUGEPAGE", "MADV_RANDOM"):
            with suppress(OSError, AttributeError):
                mapped.madvise(getattr(mmap, advice), first, last - first)
