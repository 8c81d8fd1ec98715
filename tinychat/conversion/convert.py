"""Stream a checkpoint through the quantizer into a model folder, tensor by tensor.

Peak memory is one layer's largest linear, in and out, whatever the size of the model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import adjusted
from tinychat.checkpoint.checkpoint import MAX_TEXT_FILE_BYTES, Checkpoint, open_checkpoint
from tinychat.checkpoint.safetensors_file import read_floats
from tinychat.checkpoint.stacked import unstacked
from tinychat.checkpoint.tensors import Tensors
from tinychat.conversion.gptq import Calibrated, Finished, Packed
from tinychat.conversion.pack import check_finite, pack_linear, relative_error, weight_names
from tinychat.conversion.passthrough import count_tensors, passthrough_layers
from tinychat.conversion.score_head import head_of
from tinychat.conversion.smoothing import smoothed
from tinychat.conversion.unfinished import JournaledWriter, Progress, WorkFolder, key_of, part_of, work_for
from tinychat.conversion.vision import VisionSource, open_vision
from tinychat.errors import ConversionError
from tinychat.files import read_small
from tinychat.models.architectures import expected_shapes, family_of, linears, norms, tables
from tinychat.models.dense import dense_file, dense_shapes
from tinychat.models.embedder import DENSE_WEIGHTS, read_embedder
from tinychat.models.folder import DESCRIPTION, WEIGHTS, description_of
from tinychat.models.head_folder import HEAD, SHARED, head_layout, head_specs
from tinychat.models.layout import Quantization, padded, stored_linears, tensor_specs
from tinychat.models.passthrough import NATIVE
from tinychat.models.ranker import read_ranker
from tinychat.models.score_head import SCORE_WEIGHTS, head_file
from tinychat.models.tensors import Linear, Norm, Table
from tinychat.models.vision import CONNECTOR, VISION_FOLDER
from tinychat.text.tiktoken_file import TIKTOKEN_FILE, tiktoken_in, tokenizer_json

# Linears with the largest errors that a quality report names.
WORST = 4


def convert(
    src: str | Path,
    dst: str | Path,
    quant: str = "int4",
    group_size: int = 32,
    progress: Progress | None = None,
    source: str | None = None,
) -> Path:
    """Convert a checkpoint folder into a model folder, each weight by itself; a stopped conversion is continued."""
    return write_model_folder(src, dst, Quantization(quant, group_size), progress, source)


def write_model_folder(
    src: str | Path,
    dst: str | Path,
    quantization: Quantization,
    progress: Progress | None = None,
    source: str | None = None,
    *,
    algorithm: str = "plain",
    texts: Sequence[Sequence[int]] = (),
    work: WorkFolder | None = None,
) -> Path:
    """Convert a checkpoint folder into the model folder `dst`, which must not exist yet.

    `progress` is called with (bytes done, bytes in all); `source` is recorded as the model's origin, by default the
    name of the checkpoint's folder; `work` is a work folder of `dst` that the caller has opened.

    `algorithm` is that of four-bit codes: "plain", each weight by itself; "importance", weighted by the mean square of
    each column's inputs; "gptq", with each column's error passed on to the columns after it. The inputs are those that
    `texts`, token ids, give; with int8 weights, activations are smoothed by them (`conversion.smoothing`).
    """
    is_calibrated = quantization.dtype == "int4" and algorithm != "plain"
    is_smoothed = quantization.dtype == "int8" and bool(texts)
    checkpoint = open_checkpoint(Path(src))
    check_tensors(checkpoint)
    vision = open_vision(checkpoint, quantization)
    if is_smoothed:
        checkpoint = smoothed(checkpoint, texts)
    own = work_for(Path(dst), key_of(Path(src), quantization, algorithm, texts)) if work is None else nullcontext(work)
    with own as opened:
        folder = opened.model
        quantizer: _Plain | Calibrated = _Plain(checkpoint, quantization)
        if is_calibrated:
            quantizer = Calibrated(checkpoint, quantization, algorithm == "gptq", texts, opened)
        text_bytes = sum(spec.bytes for spec in tensor_specs(checkpoint.config, quantization).values())
        behind = part_of(progress, 0, vision.size if vision else 0)
        write_weights(checkpoint, quantization, quantizer, folder / WEIGHTS, opened.folder / "journal", behind)
        write_draft_head(checkpoint, quantization, opened)
        _write_text_files(checkpoint, folder)
        description: dict[str, object] = {
            **description_of(quantization),
            "source": source or checkpoint.path.resolve().name,
            "relative_rms_error": quantizer.errors(),
        }
        if quantization.passthrough:
            description["codes"] = count_tensors(checkpoint)
        if is_smoothed:
            description["smoothed"] = True
        if is_calibrated:
            description["coding"] = algorithm
        _write_description(folder, description)
        if vision is not None:
            write_vision(vision, opened, part_of(progress, text_bytes, 0))
    return Path(dst)


def _write_text_files(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy configuration, tokenizer and template; a tiktoken file becomes a ``tokenizer.json``."""
    for file in checkpoint.text_files():
        if file.name not in (TIKTOKEN_FILE, DENSE_WEIGHTS):
            copy = folder / file.relative_to(checkpoint.path)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(read_text_file(file))
    if (vocabulary := tiktoken_in(checkpoint.path)) is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer_json(vocabulary))
    if (embedder := read_embedder(checkpoint.path)) is not None:
        for step in embedder.dense:
            file, shapes = Path(step.folder, DENSE_WEIGHTS), dense_shapes(step)
            tensors = read_floats(checkpoint.path / file, shapes)
            for name, values in tensors.items():
                check_finite(values, f"{file}: {name}")
            (folder / file).write_bytes(dense_file(step, tensors))
    if (ranker := read_ranker(checkpoint.path)) is not None:
        (folder / SCORE_WEIGHTS).write_bytes(
            head_file(ranker, checkpoint.config.hidden_size, head_of(checkpoint, ranker))
        )


def add_quality_report(folder: Path, report: Mapping[str, object]) -> None:
    """Record a quality report in a model folder, with the linears that have the largest errors."""
    description = json.loads((folder / DESCRIPTION).read_text())
    errors: dict[str, float] = description["relative_rms_error"]
    worst = dict(sorted(errors.items(), key=lambda item: -item[1])[:WORST])
    _write_description(folder, {**description, "certificate": {**report, "worst": worst}})


def _write_description(folder: Path, description: Mapping[str, object]) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def read_text_file(file: Path) -> bytes:
    """Return a file of the checkpoint; refuse one that is too large."""
    try:
        return read_small(file, MAX_TEXT_FILE_BYTES)
    except OSError as error:
        raise ConversionError(f"{file} cannot be read ({error.strerror or error})") from None


def write_weights(
    checkpoint: Checkpoint,
    quantization: Quantization,
    quantizer: "_Plain | Calibrated",
    file: Path,
    journal: Path,
    progress: Progress | None,
) -> None:
    """Write a weight file, which may have shards of an earlier try."""
    specs = tensor_specs(checkpoint.config, quantization)
    with JournaledWriter(file, journal, specs, progress) as writer:
        if quantization.passthrough:
            for name, layer, parts in passthrough_layers(checkpoint, quantization):
                if writer.finished(name, layer) is None:
                    writer.write_parts(name, layer, parts)
        for linear, shard, arrays, note in quantizer.linears(writer.finished):
            writer.write(linear, shard, arrays, note)
        for norm in norms(checkpoint.config):
            for name, data in read_norm(checkpoint.tensors, norm, quantization).items():
                writer.write_tensor(name, data)
        for table in tables(checkpoint.config):
            writer.write_tensor(table.name, read_table(checkpoint, table, quantization))


def write_draft_head(checkpoint: Checkpoint, quantization: Quantization, work: WorkFolder) -> None:
    """Write the file of a checkpoint's draft head, each weight by itself; nothing where it has none."""
    layout, head = head_layout(checkpoint.config, quantization), family_of(checkpoint.config.architecture).draft_head
    if layout is None or head is None:
        return
    by_name, prefix = checkpoint.tensors.by_name, head.prefix
    own = {f"model.{name.removeprefix(prefix)}": by_name[name] for name in by_name if name.startswith(prefix)}
    if not own:
        return
    config, quantization = layout
    tensors = adjusted(unstacked(Tensors(checkpoint.tensors.folder, own), config), config)
    shared = {source for linear in linears(config) if linear.name in SHARED for source in linear.sources}
    for name, shape in expected_shapes(config):
        if name.removesuffix(".weight") not in shared:
            tensors.expect(name, shape)
    specs = head_specs(config, quantization)
    with JournaledWriter(work.model / HEAD, work.folder / "head-journal", specs) as writer:
        for linear in linears(config):
            if linear.name not in SHARED:
                for shard in range(linear.shards):
                    writer.write(linear.name, shard, pack_linear(tensors, linear, shard, quantization)[0], ())
        for norm in norms(config):
            for name, data in read_norm(tensors, norm, quantization).items():
                writer.write_tensor(name, data)


def write_vision(vision: VisionSource, work: WorkFolder, progress: Progress | None) -> None:
    """Write the subfolder of a checkpoint's vision tower, each weight by itself, and the connector's weights in it."""
    tower, quantization, folder = vision.tower, vision.quantization, work.model / VISION_FOLDER
    check_tensors(tower)
    connector = vision.connector_file()
    folder.mkdir(exist_ok=True)
    quantizer, behind = _Plain(tower, quantization), part_of(progress, 0, vision.vision.connector_bytes)
    write_weights(tower, quantization, quantizer, folder / WEIGHTS, work.folder / "vision-journal", behind)
    (folder / CONNECTOR).write_bytes(connector)
    (folder / "config.json").write_text(json.dumps(vision.vision.tower, indent=2) + "\n")
    _write_description(folder, {**description_of(quantization), "relative_rms_error": quantizer.errors()})
    if progress is not None:
        progress(vision.size, vision.size)


class _Plain:
    """Quantizes every linear that does not pass through, each weight by itself."""

    def __init__(self, checkpoint: Checkpoint, quantization: Quantization) -> None:
        self._tensors, self._quantization = checkpoint.tensors, quantization
        stored = stored_linears(checkpoint.config, quantization)
        self._linears = [linear for linear in stored if quantization.dtype_of(linear.name) != NATIVE]
        self._sums: dict[str, dict[int, Sequence[float]]] = {linear.name: {} for linear in self._linears}

    def linears(self, finished: Finished) -> Iterator[Packed]:
        """Yield those that are not finished."""
        shards = [(linear, shard) for linear in self._linears for shard in range(linear.shards)]

        def arrival(shard: tuple[Linear, int]) -> int:
            return max(self._tensors[name].arrival for name in weight_names(*shard))

        # While a checkpoint is downloaded, the shards on disk come first.
        for linear, shard in sorted(shards, key=arrival):
            sums: Sequence[float] = finished(linear.name, shard) or ()
            if not sums:
                arrays, sums = pack_linear(self._tensors, linear, shard, self._quantization)
                yield linear.name, shard, arrays, sums
            self._sums[linear.name][shard] = sums

    def errors(self) -> dict[str, float]:
        """Return the relative root-mean-square error of each linear's weights, over all layers."""
        found = {name: relative_error([sums[shard] for shard in sorted(sums)]) for name, sums in self._sums.items()}
        return {name: error for name, error in found.items() if self._quantization.dtype_of(name) != "f32"}


def check_tensors(checkpoint: Checkpoint) -> None:
    """Check that every tensor which the configuration asks for is there, in the right shape."""
    for name, shape in expected_shapes(checkpoint.config):
        checkpoint.tensors.expect(name, shape)


def read_table(checkpoint: Checkpoint, table: Table, quantization: Quantization) -> NDArray[np.float32]:
    """Return a table of finite numbers, float32 [rows, columns padded with zeros]."""
    found = np.zeros((table.rows, padded(table.columns, quantization.column_multiple)), np.float32)
    found[:, : table.columns] = checkpoint.tensors.read(
        f"{table.source}.weight", table.first, table.first + table.rows
    ).astype(np.float32)
    check_finite(found, f"{table.source}.weight")
    return found


def read_norm(tensors: Tensors, norm: Norm, quantization: Quantization) -> dict[str, NDArray[np.float32]]:
    """Return gains and biases of the norms of one kind, by their stored names: float32 [layers, padded size]."""
    size = padded(norm.size, quantization.column_multiple) if norm.padded else norm.size
    if not norm.source:
        return {norm.name: np.full((norm.layers or 1, size), norm.scale, np.float32)}
    found = {}
    for stored, suffix in ((norm.name, "weight"), (f"{norm.name}.bias", "bias"))[: 1 + norm.bias]:
        found[stored] = rows = np.zeros((norm.layers or 1, size), np.float32)
        for source, row in zip(norm.sources, rows, strict=True):
            name = f"{source}.{suffix}"
            row[: norm.size] = tensors.read(name).astype(np.float32)
            check_finite(row, name)
    return found
