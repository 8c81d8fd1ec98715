"""The prompt of a one-shot completion: files, stdin and the flag, in this order."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinychat.errors import SettingError
from tinychat.files import HAS_NUL, read_text
from tinychat.generate.prompt import NO_TEMPLATE

if TYPE_CHECKING:
    from tinychat.generate.model import Model


@dataclass(frozen=True)
class PromptFlags:
    """Where the prompt comes from.

    Attributes
    ----------
    prompt : str, optional
        The value of --prompt; "-" asks for stdin.
    files : tuple of Path
        The values of --file.
    """

    prompt: str | None
    files: tuple[Path, ...]


def prompt_text(flags: PromptFlags, from_stdin: bool) -> str:
    """Return the texts of the files, of stdin and of the flag as one, each beginning a line.

    Stdin is read if `from_stdin` or the flag asks for it, and anyway where it is not a terminal.

    Raises
    ------
    click.UsageError
        If there is no prompt at all.
    SettingError, TextError
        If a text is not valid UTF-8, or a file cannot be read.
    """
    prompt = flags.prompt
    if prompt == "-":
        prompt, from_stdin = None, True
    if prompt is not None:
        _check_argument(prompt)
    texts = [read_text(file) for file in flags.files]
    if from_stdin or not sys.stdin.isatty():
        texts.append(_decoded(sys.stdin.buffer.read()))
    before = "".join(text if text.endswith("\n") else f"{text}\n" for text in texts if text)
    if prompt is not None:
        return before + prompt
    if not before:
        raise click.UsageError("there is no prompt: give one with -p TEXT or --file PATH, or pipe a text in")
    return before.removesuffix("\n")


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"stdin is not valid UTF-8 at byte {error.start}: convert it first") from error
    if "\0" in text:
        raise SettingError(f"stdin {HAS_NUL}")
    return text


def _check_argument(prompt: str) -> None:
    # Bytes of an argument that are not UTF-8 arrive as lone surrogates, which no tokenizer takes.
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SettingError("--prompt is not valid UTF-8: give the text in UTF-8") from error


def say_if_no_template(model: Model) -> None:
    """Say on stderr that a conversation is put to a model that has no template for it."""
    if model.template.is_fallback:
        print(NO_TEMPLATE, file=sys.stderr, flush=True)
