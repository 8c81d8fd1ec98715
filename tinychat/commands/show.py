"""tinychat show: facts about a model, without loading it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tinychat.commands.options import model_argument
from tinychat.configuration import resolve_alias
from tinychat.generate.generation_config import own_defaults
from tinychat.json_file import read_json_object, read_settings


@click.command()
@model_argument()
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object")
def show(model: str | None, as_json: bool) -> None:
    """Show facts about MODEL: its path, quantization, size, context and recommended sampling."""
    from tinychat.store.default_model import default_model
    from tinychat.store.local import MANIFEST, code_lines, holds, quality_lines
    from tinychat.store.names import find

    name = resolve_alias(model) or default_model()
    reference = find(name)
    facts: dict[str, object] = {"name": reference.path.name, "kind": reference.kind, "source": reference.source}
    if holds(reference.path, MANIFEST):
        facts |= _facts_of_folder(reference.path)
        lines = [*code_lines(reference.path), *quality_lines(reference.path)]
        if "ranks" in facts:
            lines.append("it ranks documents, and writes no text: no output matrix is stored")
        elif "pooling" in facts:
            lines.append("it gives embeddings, not text: no output matrix is stored")
    else:
        lines = ["not converted yet: its first use, or `tinychat pull`, converts it"]
    if as_json:
        print(json.dumps(facts))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"{key:<{width}}  {_as_text(value)}")
    for line in lines:
        print(line)


def _facts_of_folder(folder: Path) -> dict[str, object]:
    from tinychat.models.architectures import read_config, weight_count
    from tinychat.models.embedder import Embedder, read_embedder
    from tinychat.models.ranker import read_ranker
    from tinychat.store.local import number_format

    manifest = read_json_object(folder / "tinychat.json")
    config = read_config(folder / "config.json")
    has_template = (folder / "chat_template.jinja").is_file() or any(
        read_settings(folder / name).get("chat_template") for name in ("tokenizer_config.json", "chat_template.json")
    )
    architectures = read_json_object(folder / "config.json").get("architectures")
    embedder = read_embedder(folder) or Embedder()
    use: dict[str, object] = {"chat_template": has_template, "sampling": own_defaults(folder)}
    if (ranker := read_ranker(folder)) is not None:
        use = {"ranks": "pairs of texts" if ranker.reads_pairs else "by its chat template", "pooling": ranker.pooling}
    elif config.larger_size is not None:
        use = {"drafts": f"for a model with hidden_size {config.larger_size}"}
    elif not config.writes:
        use = {"pooling": embedder.pooling, "prompts": [*embedder.prompts]}
    return {
        "path": str(folder),
        "source": manifest.get("source") or "unknown",
        "architecture": architectures[0] if isinstance(architectures, list) and architectures else "unknown",
        "weights": weight_count(config),
        "quantization": number_format(manifest) or None,
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "context": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        **use,
    }


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item:g}" for key, item in value.items()) or "no recommendation"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
