"""tinychat embed: a vector for each line of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tinychat.commands.loading import Loader, given_settings
from tinychat.commands.options import PATH, load_flags, model_argument
from tinychat.commands.text_lines import STREAM, Text, check_ids, read_texts, run_steps
from tinychat.files import replacing
from tinychat.models.embedder import POOLINGS

if TYPE_CHECKING:
    from tinychat.generate.embeddings import Vector
    from tinychat.generate.model import Model

_ARRAY = ".npy"


@click.command()
@click.argument("source", metavar="FILE", type=PATH)
@model_argument()
@click.option(
    "-o",
    "--output",
    "target",
    type=PATH,
    default=STREAM,
    metavar="OUT",
    help="File of the vectors: a NumPy array if it ends in .npy, else JSON lines; default: -, stdout",
)
@click.option("--field", metavar="NAME", help="Each line is a JSON object with the text under this key")
@click.option(
    "--pooling",
    type=click.Choice(POOLINGS),
    help="Vector of a text: the mean of its tokens, its last or its first one (cls); default: as the model's files say",
)
@click.option("--prompt", metavar="NAME", help="Prompt of an embedding model to put before the texts, such as query")
@click.option(
    "--dimensions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Take the first N numbers of each vector, of models that are trained for it (Matryoshka); default: all",
)
@load_flags
@click.pass_obj
def embed(
    load: Loader,
    /,
    source: Path,
    model: str | None,
    target: Path,
    field: str | None,
    pooling: str | None,
    prompt: str | None,
    dimensions: int | None,
    **flags: Any,
) -> None:
    """Compute a vector for each line of FILE with MODEL.

    \b
    tinychat embed texts.txt MODEL > vectors.jsonl      {"id": 1, "tokens": 9, "embedding": [...]}
    tinychat embed texts.txt MODEL -o vectors.npy       float32, a row for each line
    tinychat embed rows.jsonl MODEL --field title       of lines such as {"id": "a", "title": "..."}
    echo "Who wrote it?" | tinychat embed - MODEL --prompt query

    Texts that mean similar things get vectors of similar direction. All vectors have length 1: the sum of
    the products of two is the cosine of the angle between them. Embedding models, such as EmbeddingGemma,
    are trained for this. Some want a prompt before questions, which `tinychat show MODEL` lists, and none
    before the documents that are to be found. Any other model gives what its hidden states have.

    FILE may be - for stdin; empty lines are skipped. The id is that of the JSON object, by default the
    line's number. A text that is longer than the context is an error; OUT is written when all are done.
    """  # noqa: D301
    texts = [*read_texts(source, field)]
    is_array = target.suffix == _ARRAY
    with _opened(target) as out:
        loaded = load(model, given_settings(flags))
        ids = [_ids_of(loaded, text, prompt) for text in texts]
        steps, size = loaded.embedding.steps(ids, pooling, dimensions), dimensions or loaded.embedding.size
        vectors = run_steps("embedding", steps, [*map(len, ids)])
        if is_array:
            _write_array(out, [*vectors], size)
        else:
            _write_lines(out, texts, ids, vectors)
    count = sum(map(len, ids))
    where = "stdout" if target == STREAM else target
    plural = "" if len(texts) == 1 else "s"
    print(f"embedded {len(texts)} text{plural}, {count} tokens, as {size} numbers each: {where}", file=sys.stderr)


def _opened(target: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdout.buffer) if target == STREAM else replacing(target, is_private=False)


def _ids_of(model: Model, text: Text, prompt: str | None) -> list[int]:
    """Return the token ids of a text that the model can embed; its line is named if there is none."""
    ids = model.embedding.text_ids(text.text, prompt)
    check_ids(model, ids, text)
    return ids


def _write_array(out: BinaryIO, vectors: Sequence[Vector], size: int) -> None:
    """Write an array for `numpy.load`, float32 [texts, size]."""
    # Imported here: an unreadable file is reported before numpy is loaded.
    import numpy as np

    np.save(out, np.asarray(vectors, np.float32).reshape(len(vectors), size))


def _write_lines(out: BinaryIO, texts: Sequence[Text], ids: Sequence[list[int]], vectors: Iterator[Vector]) -> None:
    """Write a JSON object for each text, as soon as it has its vector."""
    from tinychat.generate.embeddings import shortest_floats

    for text, tokens, vector in zip(texts, ids, vectors, strict=True):
        fields = {"id": text.id, "tokens": len(tokens), "embedding": shortest_floats(vector)}
        out.write(json.dumps(fields).encode() + b"\n")
        out.flush()
