"""Perplexity of a text, and the divergence between the predictions of two models.

The text is cut into overlapping windows that fill the context. Each window begins with the model's own
beginning-of-text token, if it has one, and scores only what the windows before it have not: so every token of the text
is scored once, after at least ``window - stride`` others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tinychat.errors import FieldError, ModelFolderError, SettingError
from tinychat.generate.model import Model

Progress = Callable[[int, int], None]
"""Called with (tokens scored, tokens in all)."""

LogProbabilities = npt.NDArray[np.floating]

# Rows of logits that are widened to float64 at a time: 128 MB for the largest vocabularies.
_ROWS = 64


@dataclass(frozen=True)
class Comparison:
    """The predictions of a model P beside those of a reference Q, at the same positions.

    `perplexity` is that of Q, `kl_divergence` the mean of ``sum Q log(Q / P)`` in nats, `top1_agreement` the share of
    positions with the same most likely token.
    """

    perplexity: float
    kl_divergence: float
    top1_agreement: float


@dataclass(frozen=True)
class Report:
    """Scores of a text.

    `perplexity` is ``exp`` of the mean negative log-likelihood of a token; `bits_per_byte`, of the text in UTF-8, is
    comparable between vocabularies. `context` is the size of a window, of which a further one scores `stride` tokens.
    """

    tokens: int
    context: int
    stride: int
    perplexity: float
    bits_per_byte: float
    against: Comparison | None


class Window(NamedTuple):
    """Tokens ``start..stop`` of the text, of which those from `first` on are scored."""

    start: int
    first: int
    stop: int


def windows(count: int, size: int, stride: int, begins: int) -> Iterator[Window]:
    """Cut `count` tokens into windows of up to `size`; token `begins` is the first that can be scored."""
    first, stop = begins, min(size, count)
    while first < count:
        yield Window(max(0, stop - size), first, stop)
        first, stop = stop, min(stop + stride, count)


def measure(
    model: Model,
    text: str,
    *,
    stride: int | None = None,
    against: Model | None = None,
    progress: Progress | None = None,
) -> Report:
    """Score every token of `text`.

    Windows fill the context; each after the first scores `stride` tokens, half the context by default. `against`, a
    model of the same vocabulary and a context as large, is the reference of the comparison. `SettingError` if the text
    is too short, the stride does not fit, or the models cannot be compared.
    """
    prefix = model.encode("")
    ids = model.encode(text, add_bos=False)
    begins = 0 if prefix else 1
    if len(ids) <= begins:
        raise SettingError("the text is too short: give at least two tokens to predict")
    size = model.context_size - len(prefix)
    stride = stride or max(1, model.context_size // 2)
    if not 1 <= stride <= size - begins:
        raise FieldError("stride", f"must be 1 to {size - begins} in a context of {model.context_size}, not {stride}")
    if against is not None:
        _check_comparable(model, against, text, prefix + ids)
    total = Totals()
    for window in windows(len(ids), size, stride, begins):
        if progress is not None:
            progress(total.tokens, len(ids) - begins)
        _score(total, model, against, prefix, ids, window)
    if progress is not None:
        progress(total.tokens, total.tokens)
    return total.report(model.context_size, stride, len(text.encode()), compared=against is not None)


def log_softmax(logits: npt.NDArray[np.float32], dtype: type[np.floating] = np.float64) -> LogProbabilities:
    """Return log-probabilities of rows of logits, `dtype` [T, V]; `ModelFolderError` if one is not finite."""
    if not np.isfinite(logits).all():
        raise ModelFolderError("the model's logits are not finite: convert the model again from a sound checkpoint")
    wide = logits.astype(dtype)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


@dataclass
class Totals:
    """Sums over the positions scored so far."""

    tokens: int = 0
    loss: float = 0.0
    reference_loss: float = 0.0
    divergence: float = 0.0
    agreements: int = 0

    def add(self, log_p: LogProbabilities, targets: npt.NDArray[np.int64]) -> None:
        """Add the likelihood of `targets`, one for each row."""
        self.tokens += len(targets)
        self.loss -= float(log_p[np.arange(len(targets)), targets].sum())

    def compare(self, log_p: LogProbabilities, log_q: LogProbabilities, targets: npt.NDArray[np.int64]) -> None:
        """Add the divergence of the predictions P from those of the reference Q."""
        self.reference_loss -= float(log_q[np.arange(len(targets)), targets].sum())
        self.divergence += float((np.exp(log_q) * (log_q - log_p)).sum())
        self.agreements += int((log_p.argmax(axis=1) == log_q.argmax(axis=1)).sum())

    def include(self, other: Totals) -> None:
        """Add other totals."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def report(self, context: int, stride: int, text_bytes: int, compared: bool) -> Report:
        """Return the means."""
        n = self.tokens
        comparison = Comparison(_exp(self.reference_loss / n), self.divergence / n, self.agreements / n)
        bits_per_byte = float(self.loss / np.log(2) / text_bytes)
        return Report(n, context, stride, _exp(self.loss / n), bits_per_byte, comparison if compared else None)


def _exp(value: float) -> float:
    # A loss of 709 nats is the largest whose exp is a float; worse models are not told apart.
    return float(np.exp(min(value, 709.0)))


def _score(
    total: Totals, model: Model, against: Model | None, prefix: list[int], ids: list[int], window: Window
) -> None:
    """Run one window and add its scored positions to `total`."""
    # The last token predicts nothing that is scored here, so it is not run; row t predicts token t + 1.
    inputs = prefix + ids[window.start : window.stop - 1]
    logits = model.logits(inputs)
    reference = None if against is None else against.logits(inputs)
    targets = np.array(ids[window.first : window.stop], np.int64)
    row = len(inputs) - len(targets)
    for start in range(0, len(targets), _ROWS):
        part = targets[start : start + _ROWS]
        rows = slice(row + start, row + start + len(part))
        log_p = log_softmax(logits[rows])
        total.add(log_p, part)
        if reference is not None:
            total.compare(log_p, log_softmax(reference[rows]), part)


def _check_comparable(model: Model, other: Model, text: str, ids: list[int]) -> None:
    if model.vocab_size != other.vocab_size or other.encode(text) != ids:
        raise SettingError(f"{model.name} and {other.name} do not share a vocabulary: they cannot be compared")
    if other.context_size < model.context_size:
        raise SettingError(
            f"{other.name} has a context of {other.context_size}: compare in a context of {other.context_size} or less"
        )
