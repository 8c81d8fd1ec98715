"""The prompt of a one-shot completion, from the flag and from stdin."""

from __future__ import annotations

import sys

import click

from tinychat.errors import SettingError


def prompt_text(prompt: str | None, from_stdin: bool) -> str:
    """Return the text of stdin, of `prompt`, or of both with stdin first.

    Parameters
    ----------
    prompt : str, optional
        The value of --prompt; "-" asks for stdin.
    from_stdin : bool
        Whether stdin was asked for; it is read anyway when it is no terminal.

    Raises
    ------
    click.UsageError
        If there is no prompt at all.
    SettingError
        If a text is not valid UTF-8.
    """
    if prompt == "-":
        prompt, from_stdin = None, True
    piped = _decoded(sys.stdin.buffer.read()) if from_stdin or not sys.stdin.isatty() else ""
    if prompt is None:
        if not piped:
            raise click.UsageError("there is no prompt: give one with -p TEXT, or pipe a text in")
        return piped.removesuffix("\n")
    _check_argument(prompt)
    separator = "" if not piped or piped.endswith("\n") else "\n"
    return piped + separator + prompt


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
