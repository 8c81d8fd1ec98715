"""Prompt templates of the configuration file.

A template is filled by plain replacement: ``{name}`` becomes the variable's text, ``{{name}}`` becomes ``{name}``, and
other braces stay. Inserted texts are not scanned again, and no code runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt, and perhaps a system prompt, with placeholders; ``{input}`` is the text piped in or typed."""

    name: str
    prompt: str
    system: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(name: str, section: Mapping[str, Any]) -> PromptTemplate:
        """Return the template of a valid section of the configuration file."""
        return PromptTemplate(name, section["prompt"], section.get("system"), section.get("defaults", {}))

    def fill(self, values: Mapping[str, str], text: str) -> tuple[str, str | None]:
        """Return prompt and system prompt; without ``{input}``, the text comes before the prompt."""
        known = {name for part in (self.prompt, self.system or "") for name in _names_in(part)}
        if unknown := next((name for name in values if name not in known or name == INPUT), None):
            expected = ", ".join(sorted(known - {INPUT})) or "none"
            raise click.UsageError(f"unknown variable {unknown!r} of template {self.name}; expected {expected}")
        found = {**self.defaults, **values} | ({INPUT: text} if text.strip() else {})
        for name in sorted(known - found.keys()):
            remedy = "pipe a text in, or give it as PROMPT" if name == INPUT else f"add {name}=VALUE"
            raise click.UsageError(f"template {self.name} needs a value for {name}: {remedy}")
        prompt = _filled(self.prompt, found)
        if INPUT not in known and text.strip():
            prompt = (text if text.endswith("\n") else f"{text}\n") + prompt
        return prompt, None if self.system is None else _filled(self.system, found)


def _names_in(text: str) -> list[str]:
    return [found[2] for found in _PLACEHOLDER.finditer(text) if found[2]]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[2]] if found[2] else f"{{{found[1]}}}", text)
