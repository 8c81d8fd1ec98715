"""tinychat rerank: the lines of a file, those that answer a query best first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader, given_settings
from tinychat.commands.options import PATH, load_flags, model_argument
from tinychat.commands.text_lines import check_ids, read_texts, run_steps

if TYPE_CHECKING:
    from tinychat.generate.model import Model
    from tinychat.generate.ranking import PairIds, Ranked


@click.command()
@click.argument("query")
@click.argument("source", metavar="FILE", type=PATH)
@model_argument()
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Write the N best lines alone")
@click.option("--field", metavar="NAME", help="Each line is a JSON object with the text under this key")
@click.option(
    "--instruction", metavar="TEXT", help="What the query asks for, of models that take it, such as Qwen3-Reranker"
)
@load_flags
@click.pass_obj
def rerank(
    load: Loader,
    /,
    query: str,
    source: Path,
    model: str | None,
    top: int | None,
    field: str | None,
    instruction: str | None,
    **flags: Any,
) -> None:
    """Order the lines of FILE by how well they answer QUERY, with MODEL.

    \b
    tinychat rerank "Who wrote Faust?" texts.txt MODEL    {"id": 3, "score": 0.98, "text": "..."}
    tinychat rerank "refunds" rows.jsonl MODEL --field title --top 5
    grep -i faust notes.txt | tinychat rerank "Who wrote Faust?" - MODEL

    A model that ranks (a reranker, or cross-encoder) reads the query and a line together: it finds the
    best of some dozens better than vectors do, which find these dozens among millions (`tinychat embed`).
    Scores are 0 to 1, and mean something beside others of the same query alone.

    FILE may be - for stdin; empty lines are skipped. The id is that of the JSON object, by default the
    line's number. A line that does not fit into the context with the query is an error.
    """  # noqa: D301
    from tinychat.generate.embeddings import shortest_floats

    texts = [*read_texts(source, field)]
    loaded = load(model, given_settings(flags))
    pairs = loaded.ranking.pairs(query, [text.text for text in texts], instruction)
    for pair, text in zip(pairs, texts):
        check_ids(loaded, pair.ids, text)
    found = _ranked(loaded, pairs)
    for index, score in zip(found.order[:top], shortest_floats(found.relevance[found.order])):
        text = texts[index]
        print(json.dumps({"id": text.id, "score": score, "text": text.text}, ensure_ascii=False))
    count, plural = sum(len(pair.ids) for pair in pairs), "" if len(texts) == 1 else "s"
    print(f"ranked {len(texts)} text{plural}, {count} tokens", file=sys.stderr)


def _ranked(model: Model, pairs: list[PairIds]) -> Ranked:
    """Return the pairs in order, and show the progress of work that takes long."""
    from tinychat.generate.ranking import ranked

    steps = model.ranking.score_ids(pairs)
    return ranked([*run_steps("ranking", steps, [len(pair.ids) for pair in pairs])])
