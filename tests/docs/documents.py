"""The pages, README.md, CONTRIBUTING.md and docs/, with their blocks of code and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
AFTER_STEPS = "needs the steps above"
"""Marks commands that exist only when the reader has written them, so that they are not even parsed."""
MARKERS = (
    *("needs a clone", "needs a download", "needs a real model", "needs a server", "needs a terminal", "takes long"),
    *("needs a package", AFTER_STEPS, "excerpt"),
)
"""Reasons in a comment before a block why no test runs it; its commands are parsed all the same."""
HOW_TO_MARK = f"correct it, or put a comment before it that says why no test can run it: one of {', '.join(MARKERS)}"

_MARKER = re.compile(r"^<!-- (needs [^\n]*|takes [^\n]*|excerpt) -->$", re.MULTILINE)
_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<'(\w+)'[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`((?:tinychat|scripts/\w+|\.venv/bin/\w+)\s[^`]*)`")
_VARIABLE = re.compile(r"[A-Z_]+=")
_PROGRAM = re.compile(r"tinychat$|scripts/|\.venv/bin/python$")


@dataclass(frozen=True)
class Block:
    """A block of code of a page: its marker, if it has one, its language and its text."""

    page: str
    line: int
    marker: str
    language: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def pages():
    """Return the text of each page by its path."""
    paths = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))]
    return {str(path.relative_to(REPO)): path.read_text(encoding="utf-8") for path in paths}


def blocks_of(page, text):
    """Return the blocks of a page."""
    found = _BLOCK.finditer(text)
    return [Block(page, text.count("\n", 0, each.start(2)) + 1, each[1] or "", each[2], each[3]) for each in found]


def markers_of(text):
    """Return the markers of a page, those that mark no block among them."""
    return _MARKER.findall(text)


def inline_code_of(text):
    """Return the commands within the sentences of a page, as one line each."""
    return [" ".join(each.split()) for each in _INLINE.findall(_BLOCK.sub("", text))]


def commands_in(script):
    """Return the commands of this project in lines of a shell, as lists of words."""
    commands = [[]]
    for line in _HEREDOC.sub("", script.replace("\\\n", " ")).splitlines():
        tokens = shlex.shlex(line, posix=True, punctuation_chars=True)
        # Else the colon of an address ends a word.
        tokens.whitespace_split = True
        for token in tokens:
            if set(token) <= set(";&|<>()"):
                commands.append([])
            else:
                commands[-1].append(token)
        commands.append([])
    # Variables of the environment may stand before a program.
    found = [[*dropwhile(_VARIABLE.match, words)] for words in commands]
    return [words for words in found if words and _PROGRAM.match(words[0])]
