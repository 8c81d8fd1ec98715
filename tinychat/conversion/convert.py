"""Stream a checkpoint through the quantizer into a model folder, tensor by tensor.

Peak memory is one layer's largest linear, in and out, whatever the size of the model.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint, open_checkpoint
from tinychat.conversion.gptq import Calibrated, Finished, Packed
from tinychat.conversion.pack import Packer, check_finite, relative_error
from tinychat.conversion.passthrough import TensorSlice, count_tensors, passthrough_layers
from tinychat.conversion.smoothing import smoothed
from tinychat.conversion.unfinished import JournaledWriter, WorkFolder, key_of, work_for
from tinychat.errors import ConversionError, SettingError
from tinychat.files import read_small
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.experts import ROUTER
from tinychat.models.folder import DESCRIPTION, WEIGHTS, description_of, header_of
from tinychat.models.layout import Quantization, padded, stored_linears, tensor_specs
from tinychat.models.tensors import Linear, Norm, Table

# The largest tokenizer.json of a published checkpoint has 33 MiB.
_MAX_TEXT_FILE_BYTES = 64 << 20
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) of the model's weights."""
Examine = Callable[[Path], Mapping[str, object]]
"""Called with the finished folder before it gets its name; returns the certificate to record in it."""
ALGORITHMS = ("plain", "importance", "gptq")
# Linears that a certificate names as those with the largest errors.
WORST = 4


class Coding(NamedTuple):
    """How codes are chosen.

    Attributes
    ----------
    algorithm : {"plain", "importance", "gptq"}
        Of four-bit codes: each weight by itself; weighted by the mean square of each column's inputs; with each
        column's error passed on to the columns after it.
    texts : sequence of sequences of int
        Token ids. The inputs that they give are what "importance" and "gptq" go by; for int8 weights, they are what
        activations are smoothed by (`conversion.smoothing`).
    """

    algorithm: str = "plain"
    texts: Sequence[Sequence[int]] = ()


PLAIN = Coding()


def convert(
    src: str | Path,
    dst: str | Path,
    quant: str = "int4",
    group_size: int = 32,
    progress: Progress | None = None,
    source: str | None = None,
) -> Path:
    """Convert a Hugging Face checkpoint folder into a model folder, each weight by itself.

    Arguments and errors are those of `tinychat.convert`, but `progress` is called with (bytes done, bytes in all), and
    `source` is recorded as the model's origin, else the name of the checkpoint's folder. A conversion that was killed
    is continued.
    """
    return write_model_folder(src, dst, Quantization(quant, group_size), progress, source)


def write_model_folder(
    src: str | Path,
    dst: str | Path,
    quantization: Quantization,
    progress: Progress | None = None,
    source: str | None = None,
    *,
    coding: Coding = PLAIN,
    examine: Examine | None = None,
    work: WorkFolder | None = None,
) -> Path:
    """Convert as `convert` does, with any quantization and coding.

    Parameters
    ----------
    src, dst : path
        A checkpoint folder, and the model folder; `dst` must not exist yet.
    quantization : Quantization
    progress, source : optional
        See `convert`.
    coding : Coding
    examine : callable, optional
        See `Examine`.
    work : WorkFolder, optional
        Of `dst`, from whoever makes `dst` of it; one of its own when omitted.

    Raises
    ------
    SettingError
        If there is no such algorithm, or no text for it.
    """
    calibrated = quantization.dtype == "int4" and coding.algorithm != "plain"
    if coding.algorithm not in ALGORITHMS:
        raise SettingError(f"method {coding.algorithm!r} is unknown: choose one of {', '.join(ALGORITHMS)}")
    if calibrated and not coding.texts:
        raise SettingError(f"method {coding.algorithm!r} needs calibration texts")
    checkpoint = open_checkpoint(Path(src))
    check_tensors(checkpoint)
    is_smoothed = quantization.dtype == "int8" and bool(coding.texts)
    if is_smoothed:
        checkpoint = smoothed(checkpoint, coding.texts)
    own = work_for(Path(dst), key_of(Path(src), quantization, *coding)) if work is None else nullcontext(work)
    with own as place:
        folder = place.model
        errors = write_weights(checkpoint, quantization, place, progress, coding if calibrated else None)
        for file in checkpoint.text_files():
            (folder / file.name).write_bytes(read_text_file(file))
        description: dict[str, object] = {
            **description_of(quantization),
            "source": source or checkpoint.path.resolve().name,
            "relative_rms_error": errors,
        }
        if quantization.passthrough:
            description["codes"] = count_tensors(checkpoint)
        if is_smoothed:
            description["smoothed"] = True
        if calibrated:
            description["coding"] = coding.algorithm
        _write_description(folder, description)
        if examine is not None:
            worst = dict(sorted(errors.items(), key=lambda item: -item[1])[:WORST])
            description["certificate"] = {**examine(folder), "worst": worst}
            _write_description(folder, description)
    return Path(dst)


def _write_description(folder: Path, description: dict[str, object]) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def read_text_file(file: Path) -> bytes:
    """Return the content of a file of the checkpoint.

    Raises
    ------
    ConversionError
    """
    try:
        return read_small(file, _MAX_TEXT_FILE_BYTES)
    except OSError as error:
        raise ConversionError(f"{file} cannot be read ({error.strerror or error})") from None


def write_weights(
    checkpoint: Checkpoint,
    quantization: Quantization,
    work: WorkFolder,
    progress: Progress | None,
    calibrated: Coding | None = None,
) -> dict[str, float]:
    """Write the weight file; return the relative root-mean-square error of each quantized linear.

    What `work` has of an earlier try is kept. `calibrated` says how four-bit codes are chosen by texts: the errors are
    then those of the outputs, not of the weights.
    """
    specs = tensor_specs(checkpoint.config, quantization)
    header, offsets = header_of(specs)
    total = sum(spec.bytes for spec in specs.values())
    with JournaledWriter(work.model / WEIGHTS, work.folder / "journal", header, offsets, total) as writer:

        def show() -> None:
            if progress:
                progress(writer.done, total)

        errors: dict[str, float] = {}
        packer = Packer(quantization)
        if quantization.passthrough:
            for name, layer, parts in passthrough_layers(checkpoint, quantization):
                if writer.finished(name, layer) is None:
                    writer.write_parts(name, layer, _followed(parts, show))
            for router in (linear for linear in linears(checkpoint.config) if linear.name == ROUTER):
                for shard in range(router.shards):
                    if writer.finished(router.name, shard) is None:
                        writer.write(router.name, shard, packer.pack(checkpoint.tensors, router, shard), ())
        else:
            how = (
                _Plain(checkpoint, packer) if calibrated is None else _calibrated(checkpoint, packer, work, calibrated)
            )
            for linear, layer, arrays, note in how.linears(writer.finished):
                writer.write(linear, layer, arrays, note)
                show()
            errors = how.errors()
        for norm in norms(checkpoint.config):
            for name, data in read_norm(checkpoint, norm, quantization).items():
                writer.write_tensor(name, data)
        for table in tables(checkpoint.config):
            writer.write_tensor(table.name, read_table(checkpoint, table, quantization))
        show()
    return errors


def _followed(parts: Iterable[TensorSlice], show: Callable[[], None]) -> Iterator[TensorSlice]:
    """Yield parts that are written one by one, and show the progress after each."""
    for part in parts:
        yield part
        show()


class _Plain:
    """Quantizes every linear, each weight by itself."""

    def __init__(self, checkpoint: Checkpoint, packer: Packer) -> None:
        self._checkpoint, self._packer = checkpoint, packer
        self._sums: dict[str, dict[int, Sequence[float]]] = {}

    def linears(self, finished: Finished) -> Iterator[Packed]:
        """Yield those that are not finished."""
        tensors, stored = self._checkpoint.tensors, stored_linears(self._checkpoint.config, self._packer.quantization)
        shards = [(linear, shard) for linear in stored for shard in range(linear.shards)]

        def arrival(shard: tuple[Linear, int]) -> int:
            return max(tensors[f"{source}.weight"].arrival for source in shard[0].names(shard[1]))

        # While a checkpoint is downloaded, first what is there.
        for linear, shard in sorted(shards, key=arrival):
            sums = self._sums.setdefault(linear.name, {})
            sums[shard] = finished(linear.name, shard) or ()
            if not sums[shard]:
                arrays = self._packer.pack(tensors, linear, shard)
                sums[shard] = self._packer.take_sums()
                yield linear.name, shard, arrays, sums[shard]

    def errors(self) -> dict[str, float]:
        """Return the errors of the weights, over all layers of a linear."""
        quantization = self._packer.quantization
        found = {name: relative_error([sums[shard] for shard in sorted(sums)]) for name, sums in self._sums.items()}
        stored = stored_linears(self._checkpoint.config, quantization)
        return {each.name: found[each.name] for each in stored if quantization.dtype_of(each.name) != "f32"}


def _calibrated(checkpoint: Checkpoint, packer: Packer, work: WorkFolder, coding: Coding) -> Calibrated:
    return Calibrated(checkpoint, packer, packer.quantization, coding.algorithm == "gptq", coding.texts, work)


def check_tensors(checkpoint: Checkpoint) -> None:
    """Check that every tensor which the configuration asks for is there, in the right shape.

    Raises
    ------
    CheckpointError
        Naming the first tensor that is missing or has another shape.
    """
    for name, shape in expected_shapes(checkpoint.config):
        checkpoint.tensors.expect(name, shape)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor that a checkpoint of this configuration has."""
    for linear in linears(config):
        for shard in range(linear.shards):
            for part, rows in zip(linear.names(shard), linear.rows):
                yield f"{part}.weight", (rows, linear.columns)
                if linear.bias:
                    yield f"{part}.bias", (rows,)
    for norm in norms(config):
        for source in norm.sources:
            yield f"{source}.weight", (norm.size,)
            if norm.bias:
                yield f"{source}.bias", (norm.size,)
    for table in tables(config):
        yield f"{table.source}.weight", (table.first + table.rows, table.columns)


def read_table(checkpoint: Checkpoint, table: Table, quantization: Quantization) -> NDArray[np.float32]:
    """Return a table, float32 [rows, columns padded with zeros].

    Raises
    ------
    ConversionError
        If a number is not finite.
    """
    found = np.zeros((table.rows, padded(table.columns, quantization.column_multiple)), np.float32)
    found[:, : table.columns] = checkpoint.tensors.read(
        f"{table.source}.weight", table.first, table.first + table.rows
    ).astype(np.float32)
    check_finite(found, f"{table.source}.weight")
    return found


def read_norm(checkpoint: Checkpoint, norm: Norm, quantization: Quantization) -> dict[str, NDArray[np.float32]]:
    """Return gains of the norms of one kind, and biases, by the names of `tensor_specs`: float32 [layers, padded size].

    Raises
    ------
    ConversionError
        If one is not finite.
    """
    size = padded(norm.size, quantization.column_multiple) if norm.padded else norm.size
    found = {}
    for stored, suffix in ((norm.name, "weight"), (f"{norm.name}.bias", "bias"))[: 1 + norm.bias]:
        found[stored] = rows = np.zeros((norm.layers or 1, size), np.float32)
        for source, row in zip(norm.sources, rows, strict=True):
            name = f"{source}.{suffix}"
            row[: norm.size] = checkpoint.tensors.read(name).astype(np.float32)
            check_finite(row, name)
    return found
