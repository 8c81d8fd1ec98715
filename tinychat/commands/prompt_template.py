"""Prompt templates of the configuration file.

A template is filled by plain replacement: ``{name}`` becomes the variable's text, ``{{name}}`` becomes ``{name}``, and
other braces stay. Inserted texts are not scanned again, and no code runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

INPUT = "input"
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")
_PAIR = re.compile(rf"({_NAME})=(.*)", re.DOTALL)


def variables_in(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split words into those that are not NAME=VALUE, and the values of the others by name."""
    pairs = [(word, _PAIR.fullmatch(word)) for word in words]
    return [word for word, pair in pairs if not pair], {pair[1]: pair[2] for _, pair in pairs if pair}


def fill_template(
    name: str, section: Mapping[str, Any], values: Mapping[str, str], text: str
) -> tuple[str, str | None]:
    """Return prompt and system prompt of a valid section; ``{input}`` is the text, which else comes before the prompt.

    `click.UsageError` for a value of no variable, or a variable without a value.
    """
    template, system = section["prompt"], section.get("system")
    known = {variable for part in (template, system or "") for variable in _names_in(part)}
    if unknown := next((variable for variable in values if variable not in known or variable == INPUT), None):
        expected = ", ".join(sorted(known - {INPUT})) or "none"
        raise click.UsageError(f"unknown variable {unknown!r} of template {name}; expected {expected}")
    found = {**section.get("defaults", {}), **values} | ({INPUT: text} if text.strip() else {})
    for variable in sorted(known - found.keys()):
        remedy = "pipe a text in, or give it as PROMPT" if variable == INPUT else f"add {variable}=VALUE"
        raise click.UsageError(f"template {name} needs a value for {variable}: {remedy}")
    prompt = _filled(template, found)
    if INPUT not in known and text.strip():
        prompt = (text if text.endswith("\n") else f"{text}\n") + prompt
    return prompt, None if system is None else _filled(system, found)


def _names_in(text: str) -> list[str]:
    return [found[2] for found in _PLACEHOLDER.finditer(text) if found[2]]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[2]] if found[2] else f"{{{found[1]}}}", text)
