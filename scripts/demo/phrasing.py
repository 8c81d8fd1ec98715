"""Phrases with alternatives: ``[Hello|Hi], {name}`` becomes one of its sentences."""

import re
from random import Random

Turn = tuple[str, str]
"""What the user says, and the reply."""

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")


def phrase(rng: Random, template: str, **fields: object) -> str:
    """Choose among the alternatives of a template and fill its fields.

    Parameters
    ----------
    rng : Random
    template : str
        ``[a|b|c]`` stands for one of its alternatives, nested or not; ``{name}`` for a field.
    **fields
        Values of the fields; they are put in last, so that they may hold any character.
    """
    while True:
        chosen, count = _ALTERNATIVES.subn(lambda match: rng.choice(match[1].split("|")), template)
        if not count:
            break
        template = chosen
    return " ".join(template.format(**fields).split())


def one_of(rng: Random, templates: tuple[str, ...], **fields: object) -> str:
    """Return a phrase of one of the templates."""
    return phrase(rng, rng.choice(templates), **fields)


def as_typed(rng: Random, text: str) -> str:
    """Return a message as people type it: now and then without capitals, or without its full stop."""
    roll = rng.random()
    if roll < 0.12:
        text = text.lower()
    if 0.06 < roll < 0.22:
        text = text.rstrip("?.!")
    if 0.22 < roll < 0.25:
        text = text.rstrip("?.!") + rng.choice(("??", "!", " ?", "..", "!!"))
    if roll > 0.92:
        text = phrase(rng, "[Please|Ok|Okay|So|Well|And now|Hey|One more],") + " " + lower_first(text)
    elif roll > 0.88 and text.endswith("?"):
        text = text[:-1] + phrase(rng, "[, please?| please|, do you know?|, can you tell me?]")
    return " ".join(text.split())


def lower_first(text: str) -> str:
    """Return the text with a small first letter, unless its first word is "I" or a name in capitals."""
    first = text.split(" ", 1)[0]
    return text if first in ("I", "I'm", "I've", "I'd") else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """Return the noun with "a" or "an" before it."""
    return ("an " if noun[0].lower() in "aeio" or noun.startswith("um") else "a ") + noun


def listed(words: list[str]) -> str:
    """Return "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
