"""From a checkpoint to a model folder: calibration texts first, then the conversion, then its quality report."""

from __future__ import annotations

import os
import shutil
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf import is_gguf
from tinychat.checkpoint.packed import is_packed
from tinychat.conversion.unfinished import WorkFolder, key_of, work_for
from tinychat.conversion.vision import VISION_SECTION, bytes_beside, tower_quantization, vision_of
from tinychat.errors import ConversionError, FieldError, SettingError
from tinychat.files import read_text
from tinychat.machine import available_memory_bytes
from tinychat.models.architectures import linears, parse_config, read_config, weight_count
from tinychat.models.config import ModelConfig
from tinychat.models.folder import WEIGHTS
from tinychat.models.layout import LANES, Quantization, tensor_specs
from tinychat.models.passthrough import NATIVE
from tinychat.store.estimates import PROGRAM_BYTES, SMALL, check_space, default_bits, gigabytes

# What needs Numba is imported where it is used: a wrong argument is reported before that is loaded.
if TYPE_CHECKING:
    from tinychat.generate.model import Model

Progress = Callable[[int, int], None]
"""Called with (thousandths done, 1000)."""

_TEXTS_FILE = "texts.json"
ALGORITHMS = ("plain", "importance", "gptq")
LEAST_BITS, MOST_BITS = 4.25, 8.25
# Least share of weights whose codes pass through: the others take eight bits then.
LEAST_PASSTHROUGH = 0.5
# Linears that are stored in int8 where there is room, in this order, after the output matrix; a model has some of them.
# And which share of a tied embedding's rows goes before each. KL of SmolLM2-135M at 92 MB, on text of others and of its
# own: 0.040 and 0.045 with down_proj, 0.041 and 0.047 with qkv_proj, each beside the rows that still fit; 0.047 and
# 0.051 with o_proj and all rows. At 83 MB o_proj gains what as many bytes of rows do.
WORTH_INT8 = {"down_proj": 1 / 4, "qkv_proj": 1 / 4, "gate_up_proj": 1 / 4, "up_proj": 1 / 4, "o_proj": 1}
# Calibration texts that a small model writes, and a larger one; one more is written for the quality report.
TEXTS, FEWER_TEXTS = 12, 6
# Texts, and tokens of each, by which int8 activations are smoothed: those of a file, else the quality report's text.
INT8_TEXTS, INT8_TOKENS = 2, 1024


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint is converted: arguments of `tinychat.convert`, of which `method` is the `algorithm` here."""

    quant: str = "int4"
    group_size: int = 32
    algorithm: str = "gptq"
    bits: str = "auto"
    calibration: Path | None = None
    check: bool = True

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise SettingError(f"method {self.algorithm!r} is unknown: choose one of {', '.join(ALGORITHMS)}")
        try:
            known = self.bits == "auto" or LEAST_BITS <= float(self.bits) <= MOST_BITS
        except ValueError:
            known = False
        if not known:
            raise SettingError(f"bits {self.bits!r} are out of range: give {LEAST_BITS} to {MOST_BITS}, or auto")
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        check_together(self.quant, self.algorithm, ["method" if name == "algorithm" else name for name in given])

    @property
    def uses_texts(self) -> bool:
        """Whether the result depends on calibration texts."""
        return self.quant in ("int4", "int8") and self.algorithm != "plain"


def check_together(quant: str, algorithm: str, given: Collection[str]) -> None:
    """Refuse a given option that does nothing beside others; `algorithm` is the option "method"."""
    has_groups = quant in ("int4", "int8")
    idle = {
        "group_size": not has_groups,
        "method": not has_groups and algorithm != "plain",
        "bits": quant != "int4" or algorithm == "plain",
        "calibration": not has_groups or algorithm == "plain",
    }
    for name in given:
        if idle.get(name):
            other = "method plain" if algorithm == "plain" and has_groups else f"quant {quant}"
            raise FieldError(name, f"does nothing beside {other}: leave one of them out")


def default_recipe(folder: Path) -> Recipe:
    """Return how a checkpoint is converted by default.

    Codes pass through where that is possible: it takes seconds, and nothing is lost. The weights of other GGUF files
    and packed checkpoints are quantized too, but not in groups that can pass through: eight bits hardly change those
    of a small one, and take seconds. So are those of embedding models, which write no texts to calibrate four bits by,
    and of drafters, each by itself.
    """
    if has_codes(folder):
        return Recipe(NATIVE, check=False)
    config = read_config(folder / "config.json")
    if config.larger_size is not None:
        return Recipe("int8", algorithm="plain", check=False)
    if not config.writes or ((is_gguf(folder) or is_packed(folder)) and weight_count(config) < SMALL):
        return Recipe("int8", check=False)
    return Recipe()


def has_codes(folder: Path) -> bool:
    """Return whether most weights of a checkpoint are codes that can be stored exactly."""
    if not is_gguf(folder) and not is_packed(folder):
        return False
    from tinychat.conversion.passthrough import passthrough_share

    return passthrough_share(open_checkpoint(folder)) >= LEAST_PASSTHROUGH


def quantization_of(folder: Path, recipe: Recipe) -> Quantization:
    """Return how the weights of a checkpoint will be stored."""
    if recipe.quant != NATIVE:
        return fitted(read_config(folder / "config.json"), recipe)
    from tinychat.conversion.convert import check_tensors
    from tinychat.conversion.passthrough import passthrough_quantization, passthrough_share

    checkpoint = open_checkpoint(folder)
    check_tensors(checkpoint)
    if not passthrough_share(checkpoint):
        raise ConversionError(f"{folder.name} has no codes for native: choose int4, int8 or f32")
    return passthrough_quantization(checkpoint)


def make(
    folder: Path,
    target: Path,
    recipe: Recipe,
    progress: Progress | None,
    source: str | None,
    for_store: bool = False,
) -> Path:
    """Convert a checkpoint folder into the model folder `target`.

    A later call continues after Ctrl-C or the end of the program. With `for_store` the model is used next: what runs it
    is compiled beside a short conversion. `ConversionError` if a weight is not finite, or `target` exists or cannot be
    written.
    """
    from tinychat.engine.precompile import begin as begin_ahead

    config = read_config(folder / "config.json")
    if config.larger_size is not None:
        # It reads and writes no text by itself, and what it writes is checked.
        recipe = Recipe(recipe.quant, recipe.group_size, "plain", check=False)
    quantization = quantization_of(folder, recipe)
    if for_store and not recipe.uses_texts and not recipe.check and config.larger_size is None:
        # What is converted in seconds is wanted at once; what takes minutes computes on all cores.
        begin_ahead(config, quantization)
    if for_store and (vision := vision_of(folder)) is not None:
        # No conversion runs a vision tower.
        begin_ahead(parse_config(vision.tower, VISION_SECTION), tower_quantization(quantization))
    # Read once, since it may be a pipe.
    text = None if recipe.calibration is None else read_text(recipe.calibration)
    key = key_of(folder, recipe, quantization, text)
    with work_for(target, key) as work:
        written = sum(_disk_bytes(file.stat()) for file in work.folder.rglob("*") if file.is_file())
        check_space([("the model", target, max(0, disk_needed(folder, recipe) - written))])
        check_memory(config, recipe)
        _make(folder, work, recipe, text, quantization, Phases(progress), source)
    return target


def _disk_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file has on disk, of which one with holes has fewer; Windows tells its length only."""
    if sys.platform == "win32":
        return status.st_size
    return status.st_blocks * 512


def disk_needed(folder: Path, recipe: Recipe) -> int:
    """Return the most bytes that the conversion of a checkpoint has on disk at a time."""
    config = read_config(folder / "config.json")

    def size(quantization: Quantization) -> int:
        own = sum(spec.bytes for spec in tensor_specs(config, quantization).values())
        return own + bytes_beside(folder, quantization)

    # A model in int8 writes the texts, and is gone before the other is written.
    writes_texts = recipe.uses_texts and recipe.quant == "int4" and config.writes
    int8 = size(Quantization("int8", recipe.group_size)) if writes_texts else 0
    return max(int8, size(quantization_of(folder, recipe)))


def check_memory(config: ModelConfig, recipe: Recipe) -> None:
    """Refuse a conversion that needs more memory than is free, where the system tells."""
    needed, free = memory_needed(config, recipe), available_memory_bytes()
    if free is not None and needed > free:
        other = ", or convert it with `tinychat convert --method plain`" if recipe.uses_texts else ""
        raise ConversionError(
            f"the conversion needs some {gigabytes(needed)} of memory, and {gigabytes(free)} are free: close other"
            f" programs{other}"
        )


def memory_needed(config: ModelConfig, recipe: Recipe) -> int:
    """Return about how many bytes of memory a conversion takes, without pages of files."""
    from tinychat.conversion.calibration import TEXT_TOKENS

    layers = [linear for linear in linears(config) if linear.layers is not None]
    weights, columns = max(sum(each.rows) * each.columns for each in layers), max(each.columns for each in layers)
    if not recipe.uses_texts:
        return PROGRAM_BYTES + 4 * weights
    tokens = TEXT_TOKENS * (TEXTS if weight_count(config) < SMALL else FEWER_TEXTS)
    # In float32: the largest linear as it is to be coded, with the errors so far, and what is added to it; second
    # moments of its inputs and their factors; the texts' hidden states and what goes between linears, in the quantized
    # and in the true model. Codes of layers that run again are bytes, but for experts, whose are not kept.
    floats = 3 * weights + 5 * columns**2 // 2 + tokens * (8 * config.hidden_size + 6 * config.intermediate_size)
    looped = config.loops.last - config.loops.first if config.loops else 0
    codes = looped * sum(sum(each.rows) * each.columns for each in layers if not each.experts)
    return PROGRAM_BYTES + 4 * floats + codes


def _make(
    folder: Path,
    work: WorkFolder,
    recipe: Recipe,
    text: str | None,
    quantization: Quantization,
    phases: Phases,
    source: str | None,
) -> None:
    from tinychat.conversion import convert as conversion

    config = read_config(folder / "config.json")
    # The report is about what a model predicts, and the texts for four bits are its own.
    checks = recipe.check and recipe.quant != "f32" and config.writes
    texts: list[list[int]] = []
    held_out: list[int] = []
    writes_texts = recipe.uses_texts and recipe.quant == "int4" and config.writes
    if writes_texts:
        count = TEXTS if weight_count(config) < SMALL else FEWER_TEXTS
        texts, held_out = _texts(folder, work, recipe.group_size, text, count, phases)
    elif recipe.uses_texts:
        texts = _given_texts(folder, text, config.max_position_embeddings if config.learned_positions else INT8_TOKENS)

    conversion.write_model_folder(
        folder,
        work.model,
        quantization,
        phases.part(0.4 if writes_texts else 0.85 if checks else 1.0, ends=not checks),
        source,
        algorithm=recipe.algorithm,
        texts=texts,
        work=work,
    )
    if checks:
        report = _quality_report(folder, work.model, held_out, phases.part(0.15))
        conversion.add_quality_report(work.model, report)


class Phases:
    """The progress of several parts as one."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._begun = 0.0

    def part(self, share: float, ends: bool = False) -> Progress | None:
        """Return the progress of the next part, which takes `share` of the whole; all the rest if it `ends` it."""
        if self._progress is None:
            return None
        first, last = self._begun, 1.0 if ends else min(1.0, self._begun + share)
        self._begun = last
        report = self._progress

        def show(done: int, total: int) -> None:
            report(round(1000 * (first + (last - first) * done / max(total, 1))), 1000)

        return show


def fitted(config: ModelConfig, recipe: Recipe) -> Quantization:
    """Return the quantization whose weights fit the recipe's bits.

    Predictions suffer most from errors of the output matrix. It is in int8 if it fits, and then the other linears that
    fit, in the order of what a byte of them gains. Where the output matrix is the embedding, its most frequent tokens
    go first, then those linears, then as many more of its rows as fit.
    """
    plain = Quantization(recipe.quant, recipe.group_size)
    if recipe.quant != "int4" or recipe.algorithm == "plain":
        return plain
    weights = weight_count(config)
    limit = (default_bits(weights) if recipe.bits == "auto" else float(recipe.bits)) * weights / 8

    def with_int8(names: Sequence[str], rows: int = 0) -> Quantization:
        if rows and rows >= config.vocab_size // LANES * LANES:
            return Quantization("int4", recipe.group_size, ("embed_tokens", *names))
        return Quantization("int4", recipe.group_size, tuple(names), rows)

    def fits(quantization: Quantization) -> bool:
        return sum(spec.bytes for spec in tensor_specs(config, quantization).values()) <= limit

    tied = config.tie_word_embeddings
    names: list[str] = []
    if not tied:
        if not fits(with_int8(["lm_head"])):
            return plain
        names = ["lm_head"]
    there = {linear.name for linear in linears(config)}
    for name, share in WORTH_INT8.items():
        rows = round(config.vocab_size * share) // LANES * LANES if tied else 0
        if name in there and fits(with_int8([*names, name], rows)):
            names.append(name)
    if not tied:
        return with_int8(names)
    # The most rows of the embedding that fit.
    blocks = range(1, config.vocab_size // LANES + 1)
    most = bisect_left(blocks, True, key=lambda count: not fits(with_int8(names, count * LANES)))
    return with_int8(names, most * LANES)


def _given_texts(folder: Path, text: str | None, positions: int) -> list[list[int]]:
    """Return texts that show how large the columns of activations are, which of an embedding model any text does.

    positions : no text has more tokens.
    """
    from tinychat.conversion.calibration import cut_texts
    from tinychat.conversion.quality_report import TEXT
    from tinychat.text.loading import load_tokenizer

    tokenizer, length = load_tokenizer(folder), min(INT8_TOKENS, positions)
    if text is not None:
        return cut_texts(tokenizer, length, text, INT8_TEXTS)
    ids = tokenizer.encode(TEXT)[:length]
    return [ids] if ids else []


def _texts(
    folder: Path, work: WorkFolder, group_size: int, text: str | None, count: int, phases: Phases
) -> tuple[list[list[int]], list[int]]:
    """Return token ids: the calibration texts, and one text held out for the quality report."""
    from tinychat.conversion import convert as conversion
    from tinychat.conversion.calibration import cut_texts, write_texts

    earlier: Any = work.read(_TEXTS_FILE)
    converting, writing = phases.part(0.05), phases.part(0.4)
    if earlier:
        return earlier["texts"], earlier["held_out"]
    int8 = work.folder / "int8"
    # Not all of an earlier one may have reached the disk.
    shutil.rmtree(int8, ignore_errors=True)
    conversion.convert(folder, int8, "int8", group_size, converting)
    model = _load(int8)
    if text is None:
        *texts, held_out = write_texts(model, count + 1, writing)
    else:
        (held_out,) = write_texts(model, 1, writing)
        texts = cut_texts(model, model.context_size, text, count)
    work.write(_TEXTS_FILE, {"texts": texts, "held_out": held_out})
    shutil.rmtree(int8, ignore_errors=True)
    return texts, held_out


def _quality_report(folder: Path, made: Path, held_out: Sequence[int], progress: Progress | None) -> dict[str, object]:
    from tinychat.conversion.calibration import write_texts
    from tinychat.conversion.quality_report import examine
    from tinychat.conversion.source import Source

    model, checkpoint = _load(made), open_checkpoint(folder)
    held_out = held_out or write_texts(model, 1)[0]
    return {
        "texts": examine(Source(checkpoint), model, held_out, progress),
        "bits_per_weight": round(8 * (made / WEIGHTS).stat().st_size / weight_count(checkpoint.config), 3),
    }


def _load(folder: Path) -> Model:
    from tinychat.conversion.calibration import MODEL_CONTEXT
    from tinychat.generate.loading import load_folder

    trained = read_config(folder / "config.json").max_position_embeddings
    return load_folder(folder, context=min(MODEL_CONTEXT, trained))
