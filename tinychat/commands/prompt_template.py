"""Prompt templates of the configuration file: their variables, and the prompt that comes of them.

A template is filled by plain replacement: ``{name}`` becomes the variable's text, ``{{name}}`` becomes ``{name}``, and
other braces stay. What is filled in is not looked at again, and no code runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

INPUT = "input"
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_PLACE = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")
_PAIR = re.compile(rf"({_NAME})=(.*)", re.DOTALL)


def variables_in(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words that are not NAME=VALUE, and the values of those that are."""
    pairs = [(word, _PAIR.fullmatch(word)) for word in words]
    return [word for word, pair in pairs if not pair], {pair[1]: pair[2] for _, pair in pairs if pair}


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt with places for variables.

    Attributes
    ----------
    name : str
        In the configuration file.
    prompt : str
        ``{input}`` stands for the text that is piped in, or given otherwise.
    system : str, optional
        The template's own system prompt, in which variables are filled in too.
    defaults : mapping
        Texts of variables that are not given.
    """

    name: str
    prompt: str
    system: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(name: str, section: Mapping[str, Any]) -> PromptTemplate:
        """Return the template of a checked section of the configuration file."""
        return PromptTemplate(name, section["prompt"], section.get("system"), section.get("defaults", {}))

    def fill(self, values: Mapping[str, str], text: str) -> tuple[str, str | None]:
        """Return prompt and system prompt; a text that no ``{input}`` stands for comes before the prompt.

        Raises
        ------
        click.UsageError
            If a variable has no value, or a value no variable.
        """
        known = {name for part in (self.prompt, self.system or "") for name in _names_in(part)}
        if strange := next((name for name in values if name not in known or name == INPUT), None):
            others = ", ".join(sorted(known - {INPUT})) or "none"
            raise click.UsageError(f"template {self.name} has no variable {strange}; it has {others}")
        found = {**self.defaults, **values} | ({INPUT: text} if text.strip() else {})
        for name in sorted(known - found.keys()):
            remedy = "pipe a text in, or give it in words" if name == INPUT else f"add {name}=VALUE"
            raise click.UsageError(f"template {self.name} needs a value for {name}: {remedy}")
        prompt = _filled(self.prompt, found)
        if INPUT not in known and text.strip():
            prompt = f"{text}{'' if text.endswith(chr(10)) else chr(10)}{prompt}"
        return prompt, None if self.system is None else _filled(self.system, found)


def _names_in(text: str) -> list[str]:
    return [place[2] for place in _PLACE.finditer(text) if place[2]]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: values[place[2]] if place[2] else f"{{{place[1]}}}", text)
