"""From a checkpoint to a model folder: the model's own words first, then its codes, then its certificate."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import ConversionError, SettingError
from tinychat.estimates import SMALL, usual_bits
from tinychat.files import read_stream

if TYPE_CHECKING:
    from tinychat.generate.model import Model
    from tinychat.models.config import ModelConfig
    from tinychat.models.layout import Quantization

Progress = Callable[[int, int], None]
"""Called with (thousandths done, 1000)."""

METHODS = ("plain", "importance", "gptq")
LEAST_BITS, MOST_BITS = 4.25, 8.25
# Kinds of linears to keep in int8 where there is room, after the output matrix.
WORTH_INT8 = ("o_proj", "qkv_proj", "down_proj", "gate_up_proj")
# Texts that a model writes of itself, if it is small and if it is not; one more is kept for the certificate.
TEXTS, FEWER_TEXTS = 12, 6
# Texts that the columns of int8 activations are measured by: those of a file, else the certificate's.
INT8_TEXTS, INT8_TOKENS = 2, 1024
# Largest calibration file: far more than is looked at.
CALIBRATION_BYTES = 512 << 20


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint is converted.

    Attributes
    ----------
    quant : {"int4", "int8", "f32"}
    group_size : int
        Columns that share one scale.
    method : {"plain", "importance", "gptq"}
        How four-bit codes are chosen: see `tinychat.conversion.convert.write_model_folder`. All but "plain" even out
        the activations of int8 weights.
    bits : str
        Most bits of a weight on average, from 4.25 on as far as groups of 32 go, or "auto". What four-bit codes leave
        of them goes into int8.
    calibration : Path, optional
        A text to look at the model with; its own words when None.
    check : bool
        Measure the certificate.
    """

    quant: str = "int4"
    group_size: int = 32
    method: str = "gptq"
    bits: str = "auto"
    calibration: Path | None = None
    check: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise SettingError(f"method {self.method!r} is unknown: choose one of {', '.join(METHODS)}")
        try:
            known = self.bits == "auto" or LEAST_BITS <= float(self.bits) <= MOST_BITS
        except ValueError:
            known = False
        if not known:
            raise SettingError(f"bits {self.bits!r} are out of range: give {LEAST_BITS} to {MOST_BITS}, or auto")

    @property
    def looks_at_texts(self) -> bool:
        """Whether the result depends on texts."""
        return self.quant != "f32" and self.method != "plain"


def usual_recipe(folder: Path) -> Recipe:
    """Return how a checkpoint is converted where nobody says how.

    The numbers of a GGUF file are rounded already. Eight bits keep a small one as it is, and take seconds.
    """
    from tinychat.checkpoint.gguf import is_gguf
    from tinychat.models.architectures import read_config

    if is_gguf(folder) and weight_count(read_config(folder / "config.json")) < SMALL:
        return Recipe("int8", check=False)
    return Recipe()


def make(folder: Path, target: Path, recipe: Recipe, progress: Progress | None, source: str | None) -> Path:
    """Convert a checkpoint folder into the model folder `target`.

    Raises
    ------
    ConversionError
        If a weight is not finite, or `target` exists or cannot be written.
    TinychatError
        If the checkpoint is damaged or not supported, or a setting is out of range.
    """
    from tinychat.conversion import convert as conversion
    from tinychat.models.architectures import read_config

    if target.exists() or target.is_symlink():
        raise ConversionError(f"{target} exists already: remove it, or choose another target")
    config = read_config(folder / "config.json")
    quantization = stored(config, recipe)
    phases = Phases(progress)
    checks = recipe.check and recipe.quant != "f32"
    texts: list[list[int]] = []
    held: list[int] = []
    lets_write = recipe.looks_at_texts and recipe.quant == "int4"
    if lets_write:
        count = TEXTS if weight_count(config) < SMALL else FEWER_TEXTS
        texts, held = _texts(folder, target, recipe, count, phases)
    elif recipe.looks_at_texts:
        texts = _texts_for_int8(folder, recipe)

    def examine(made: Path) -> dict[str, object]:
        return _certificate(folder, made, held, phases.part(0.15))

    return conversion.write_model_folder(
        folder,
        target,
        quantization,
        phases.part(0.4 if lets_write else 0.85 if checks else 1.0, ends=not checks),
        source,
        method=recipe.method,
        texts=texts,
        examine=examine if checks else None,
    )


class Phases:
    """One progress of several parts, each of which takes a share of the whole."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._begun = 0.0

    def part(self, share: float, ends: bool = False) -> Progress | None:
        """Return the progress of the next part, which takes `share`, or all that is left."""
        if self._progress is None:
            return None
        first, last = self._begun, 1.0 if ends else min(1.0, self._begun + share)
        self._begun = last
        report = self._progress

        def show(done: int, total: int) -> None:
            report(round(1000 * (first + (last - first) * done / max(total, 1))), 1000)

        return show


def stored(config: ModelConfig, recipe: Recipe) -> Quantization:
    """Return how a model's weights are stored so that it keeps to the recipe's bits.

    Predictions suffer most from errors of the output matrix, which is the embedding where the two are tied: of a tied
    one, as many of the most frequent tokens' rows as fit are kept in int8; then whole kinds of linears, in the order of
    what a byte of them gains.
    """
    from tinychat.models.layout import LANES, Quantization, tensor_specs

    plain = Quantization(recipe.quant, recipe.group_size)
    if recipe.quant != "int4" or recipe.method == "plain":
        return plain
    weights = weight_count(config)
    limit = (usual_bits(weights) if recipe.bits == "auto" else float(recipe.bits)) * weights / 8

    def fits(quantization: Quantization) -> bool:
        return sum(spec.bytes for spec in tensor_specs(config, quantization).values()) <= limit

    int8: tuple[str, ...] = ()
    output = "embed_tokens" if config.tie_word_embeddings else "lm_head"
    if fits(Quantization("int4", recipe.group_size, (output,))):
        for name in (output, *WORTH_INT8):
            if fits(Quantization("int4", recipe.group_size, (*int8, name))):
                int8 = (*int8, name)
        return Quantization("int4", recipe.group_size, int8)
    if not config.tie_word_embeddings:
        return Quantization("int4", recipe.group_size)
    # The most rows that fit, by halving.
    low, high = 0, config.vocab_size // LANES
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if fits(Quantization("int4", recipe.group_size, (), middle * LANES)) else (low, middle)
        )
    return Quantization("int4", recipe.group_size, (), low * LANES)


def weight_count(config: ModelConfig) -> int:
    """Return how many weights a model has, those of its norms left out."""
    from tinychat.models.architectures import linears

    return sum(sum(linear.rows) * linear.columns * (linear.layers or 1) for linear in linears(config))


def _texts_for_int8(folder: Path, recipe: Recipe) -> list[list[int]]:
    """Return texts that show how large the columns of activations are: any will do, so nothing is written for it."""
    from tinychat.calibration import words_of
    from tinychat.certificate import TEXT
    from tinychat.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    if recipe.calibration is not None:
        return words_of(tokenizer, INT8_TOKENS, _read(recipe.calibration), INT8_TEXTS)
    ids = tokenizer.encode(TEXT)[:INT8_TOKENS]
    return [ids] if ids else []


def _texts(folder: Path, target: Path, recipe: Recipe, count: int, phases: Phases) -> tuple[list[list[int]], list[int]]:
    """Return texts to look at a model with, and one that is kept for its certificate: token ids."""
    from tinychat.calibration import own_words, words_of
    from tinychat.conversion import convert as conversion

    with _beside(target) as aside:
        conversion.convert(folder, aside / "int8", "int8", recipe.group_size, phases.part(0.05))
        model = _load(aside / "int8")
        share = phases.part(0.4)
        if recipe.calibration is None:
            *texts, held = own_words(model, count + 1, share)
            return texts, held
        (held,) = own_words(model, 1, share)
        return words_of(model, model.context_size, _read(recipe.calibration), count), held


def _certificate(folder: Path, made: Path, held: Sequence[int], progress: Progress | None) -> dict[str, object]:
    from tinychat.calibration import own_words
    from tinychat.certificate import examine
    from tinychat.checkpoint.checkpoint import open_checkpoint
    from tinychat.conversion.source import Source
    from tinychat.models.folder import WEIGHTS

    model = _load(made)
    held = held or own_words(model, 1)[0]
    checkpoint = open_checkpoint(folder)
    certificate: dict[str, object] = {
        "texts": examine(Source(checkpoint), model, held, progress),
        "bits_per_weight": round(8 * (made / WEIGHTS).stat().st_size / weight_count(checkpoint.config), 3),
    }
    return certificate


def _load(folder: Path) -> Model:
    from tinychat.calibration import MODEL_CONTEXT
    from tinychat.generate.model import load_folder
    from tinychat.models.architectures import read_config

    trained = read_config(folder / "config.json").max_position_embeddings
    return load_folder(folder, context=min(MODEL_CONTEXT, trained))


def _read(file: Path) -> str:
    try:
        return read_stream(file, CALIBRATION_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"{file} is no text in UTF-8: give a text file for calibration") from None
    except OSError as error:
        raise SettingError(f"{file} cannot be read ({error.strerror or error}): give a text file") from None


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Give a temporary folder on the disk of `target`, under a name that a later conversion clears away."""
    from tinychat.conversion.convert import aside_prefix

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=aside_prefix(target), dir=target.parent))
    except OSError as error:
        raise ConversionError(f"{target} cannot be written ({error.strerror}): choose another target") from None
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
