"""The quality report: a model folder's predictions compared with its checkpoint's in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinychat.conversion.cores import on_each
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.source import Floats, Source
from tinychat.errors import TextError
from tinychat.generate.model import Model
from tinychat.generate.perplexity import Totals, log_softmax

Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""

# Rows of logits: computed from the checkpoint at a time, and compared by one thread at a time.
_BLOCK_ROWS, _ROWS = 256, 32

TEXT = """\
The ferry left at ten past six, twenty minutes late, with four cars and a lorry full of onions on its deck. Nobody
complained. Ida stood at the rail and counted the lamps along the harbour wall, as she had done when she was a child,
and got to seventeen before the rain hid the rest. "You always stop at seventeen," her brother said behind her. He had
two cups of tea and no hat.

A heat pump moves warmth from a cold place to a warmer one. It does so with a fluid that boils at a low temperature.
Outside, at low pressure, the fluid takes up heat and turns into gas; a compressor then raises its pressure, and with it
its temperature; inside, the gas gives off its heat and becomes liquid again. For each kilowatt hour of electricity, a
good machine delivers three or four of heat. The colder it is outside, the less it can do: at -15 degrees the ratio may
fall below two.

def moving_average(values, width):
    \"\"\"Return the mean of each run of `width` neighbours.\"\"\"
    if not 1 <= width <= len(values):
        raise ValueError(f"width {width} does not fit {len(values)} values")
    total = sum(values[:width])
    means = [total / width]
    for old, new in zip(values, values[width:]):
        total += new - old
        means.append(total / width)
    return means

How do I get candle wax out of a tablecloth? Let it harden, or put ice on it, and scrape off what comes away with the
back of a knife. Lay the cloth between two sheets of brown paper and pass a warm iron over it: the paper takes up what
is left. Coloured wax may leave a stain; dab it with alcohol before you wash the cloth as hot as its label allows.

In 1854 a physician marked every death from cholera on a map of his district. Most of them lay around one pump. He had
its handle removed, and although the epidemic was already fading, his map became the beginning of a science: to ask not
only who fell ill, but where, and what those places had in common.

| month | rain (mm) | sunny hours |
|-------|-----------|-------------|
| March | 41        | 118         |
| April | 38        | 162         |
| May   | 56        | 201         |

1. Boil the potatoes in their skins, 2. peel them while they are hot, 3. press them through a sieve, and 4. fold in the
butter. Do not stir more than you must, or the mash will turn to glue.
"""


def examine(
    source: Source, model: Model, own_words: Sequence[int], progress: Progress | None = None
) -> dict[str, dict[str, float]]:
    """Compare a converted model with its checkpoint on `TEXT`, and on token ids that the model wrote itself, if any.

    Returns tokens, kl (nats), top1 (share), perplexity, and source_perplexity by "text" and "own words".
    """
    texts = {"text": _text_ids(model), "own words": list(own_words)[: model.context_size]}
    texts = {name: ids for name, ids in texts.items() if len(ids) > 1}
    float_pass = FloatPass(source, list(texts.values()))
    hidden = np.split(_last_hidden(float_pass, len(source.config.layer_runs), progress), float_pass.firsts[1:-1])
    return {name: _compared(float_pass, model, ids, rows) for (name, ids), rows in zip(texts.items(), hidden)}


def _text_ids(model: Model) -> list[int]:
    try:
        return model.encode(TEXT)[: model.context_size]
    except TextError:
        return []


def _last_hidden(float_pass: FloatPass, runs: int, progress: Progress | None) -> Floats:
    """Return the hidden states that the last layer gives."""
    hidden = float_pass.embed()
    for index in range(runs):
        if progress is not None:
            progress(index, runs)
        hidden = float_pass.run_layer(index, hidden)
    if progress is not None:
        progress(runs, runs)
    return hidden


def _compared(float_pass: FloatPass, model: Model, ids: Sequence[int], hidden: Floats) -> dict[str, float]:
    total = Totals()
    logits = model.logits(ids)[:-1]
    targets = np.array(ids[1:], np.int64)

    def compare(start: int) -> Totals:
        part, counted = slice(start, start + _ROWS), Totals()
        # In float32 this takes half as long, and the means have as many correct digits as are reported.
        log_p, log_q = (log_softmax(rows[part], np.float32) for rows in (found, expected))
        counted.add(log_p, wanted[part])
        counted.compare(log_p, log_q, wanted[part])
        return counted

    for first in range(0, len(targets), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        found, wanted, expected = logits[block], targets[block], float_pass.logits(hidden[:-1][block])
        for counted in on_each(compare, range(0, len(wanted), _ROWS)):
            total.include(counted)
    report = total.report(model.context_size, 0, 1, compared=True)
    assert report.against is not None
    return {
        "tokens": report.tokens,
        "kl": round(report.against.kl_divergence, 5),
        "top1": round(report.against.top1_agreement, 4),
        "perplexity": round(report.perplexity, 3),
        "source_perplexity": round(report.against.perplexity, 3),
    }
