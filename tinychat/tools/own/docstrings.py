"""Docstrings of functions: the description, and that of each parameter, in the styles of numpy, Google and Sphinx."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECTION = re.compile(
    r"^(?:(Args|Arguments|Parameters|Params)|Returns?|Raises|Yields?|Examples?|Notes?|See Also):?[ \t]*$"
    r"(?:\n-{3,}[ \t]*$)?|^:\w+",
    re.MULTILINE,
)
# "name : type" of numpy, with the text below it; "name (type): text" of Google.
_NUMPY = re.compile(r"^(\w+)[ \t]*(?::.*)?$")
_GOOGLE = re.compile(r"^(\w+)[ \t]*(?:\([^)]*\))?:[ \t]+(.*)$")
_SPHINX = re.compile(r"^:param(?:[ \t]+[^:\n]*?)?[ \t]+(\w+):[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def parts_of(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section of a clean docstring, and the texts of the parameters."""
    sections = [*_SECTION.finditer(docstring)]
    head = docstring[: sections[0].start()] if sections else docstring
    texts = {match[1]: _joined(match[2].split("\n")) for match in _SPHINX.finditer(docstring)}
    ends = [*(match.start() for match in sections[1:]), len(docstring)]
    for section, end in zip(sections, ends):
        if section[1]:
            texts |= _parameters(docstring[section.end() : end].strip("\n").split("\n"))
    return _joined(head.split("\n")), texts


def _parameters(lines: list[str]) -> dict[str, str]:
    """Return the parameters of a section: the lines that are indented least name them."""
    texts: dict[str, list[str]] = {}
    indent = min((_indent(line) for line in lines if line.strip()), default=0)
    name = ""
    for line in lines:
        match = _GOOGLE.match(line.strip()) or _NUMPY.match(line.strip())
        if _indent(line) == indent and match:
            name = match[1]
            texts[name] = [match[2]] if match.re is _GOOGLE and indent else []
        elif name:
            texts[name].append(line)
    return {name: _joined(text) for name, text in texts.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())
