"""The ids that end a reply."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinychat.errors import TextError
from tinychat.json_file import read_settings
from tinychat.text.guard import spelling_pattern
from tinychat.text.template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer

_PROBE = "tinychat"


def stop_ids(folder: Path, tokenizer: Tokenizer, template: ChatTemplate) -> frozenset[int]:
    """Return the ids that end a reply: see `stop_sources`."""
    return frozenset(stop_sources(folder, tokenizer, template))


def stop_sources(folder: Path, tokenizer: Tokenizer, template: ChatTemplate) -> dict[int, list[str]]:
    """Return the ids that end a reply, each with the sources that call it so.

    Checkpoints often name only some of them.
    """
    found = [(tokenizer.eos_id, "the tokenizer"), (end_of_turn_id(tokenizer, template), "the chat template")]
    for name in ("config.json", "generation_config.json"):
        ids = _end_ids(read_settings(folder / name))
        found += [(number, name) for number in (ids if isinstance(ids, list) else [ids]) if type(number) is int]
    sources: dict[int, list[str]] = {}
    for number, source in found:
        if number is not None and number >= 0:
            sources.setdefault(number, []).append(source)
    return sources


def _end_ids(settings: Mapping[str, object]) -> object:
    """Return a file's ``eos_token_id``, which may be in the section of a multimodal model's text model."""
    section, ids = settings.get("text_config") or settings.get("llm_config"), settings.get("eos_token_id")
    return section.get("eos_token_id") if ids is None and isinstance(section, dict) else ids


def end_of_turn_id(tokenizer: Tokenizer, template: ChatTemplate) -> int | None:
    """Id of the added token that the template writes right after a reply, or None.

    One that ends a message of thoughts, too, ends no reply: the next one counts.
    """
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = template.render(turns, add_generation_prompt=False)
    except TextError:
        return None
    _, reply, after = text.rpartition(_PROBE)
    marks = tokenizer.thought_marks
    tokens = spelling_pattern(tokenizer.added_tokens)
    while (match := tokens.match(after := after.lstrip())) and marks and match[0] in marks.tokens:
        after = after[match.end() :]
    return tokenizer.added_tokens[match[0]] if match and reply else None
