"""The prompt of a one-shot completion: files, stdin and the flag, in this order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tinychat.commands.text_file import read_text
from tinychat.errors import SettingError


def prompt_text(prompt: str | None, from_stdin: bool, files: Sequence[Path] = ()) -> str:
    """Return the texts of `files`, of stdin and of `prompt` as one, each beginning a line.

    Parameters
    ----------
    prompt : str, optional
        The value of --prompt; "-" asks for stdin.
    from_stdin : bool
        Whether stdin was asked for; it is read anyway when it is no terminal.
    files : sequence of Path
        The values of --file.

    Raises
    ------
    click.UsageError
        If there is no prompt at all.
    SettingError, TextError
        If a text is not valid UTF-8, or a file cannot be read.
    """
    if prompt == "-":
        prompt, from_stdin = None, True
    if prompt is not None:
        _check_argument(prompt)
    texts = [read_text(file) for file in files]
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
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"stdin is not valid UTF-8 at byte {error.start}: convert it first") from error


def _check_argument(prompt: str) -> None:
    # Bytes of an argument that are no UTF-8 arrive as lone surrogates, which no tokenizer takes.
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SettingError("--prompt is not valid UTF-8: give the text in UTF-8") from error
