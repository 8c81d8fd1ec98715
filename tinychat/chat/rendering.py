"""Everything that is drawn: the model's text on stdout, all else on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from tinychat.chat.safe_text import safe_text
from tinychat.generate.summary import FinishReason, Summary

_DIM, _BOLD, _RESET, _ERASE_LINE = "\x1b[2m", "\x1b[1m", "\x1b[0m", "\r\x1b[K"

# Shorter prompts are read before the eye has found the line.
_STATUS_FROM_TOKENS = 64

_ENDINGS: Mapping[FinishReason, str] = {
    "stop": "",
    "stop_string": "stop text met",
    "length": "cut at the token limit",
    "context": "the context is full",
    "interrupted": "stopped",
}


class Renderer:
    """Draws a conversation on two text streams.

    Parameters
    ----------
    out : text stream
        Gets the model's text and nothing else.
    err : text stream
        Gets status lines, notices and errors.
    environment : mapping
        Environment variables; NO_COLOR and TERM are read.
    """

    def __init__(self, out: TextIO, err: TextIO, environment: Mapping[str, str]) -> None:
        dumb = environment.get("TERM", "") == "dumb"
        self._out, self._err = out, err
        self._out_is_terminal = out.isatty()
        self._err_is_terminal = err.isatty()
        self._can_erase = self._err_is_terminal and not dumb
        self._can_style = self._can_erase and not environment.get("NO_COLOR")
        self._status_shown = False
        self._at_line_start = True

    def prefill_progress(self, done: int, total: int) -> None:
        """Show how much of the prompt has been read; nothing where the line could not be erased."""
        if not self._can_erase or total < _STATUS_FROM_TOKENS:
            return
        self._draw_status(f"reading the prompt {100 * done // total} %")

    def text(self, text: str) -> None:
        """Write text of the model, as it is to a file or pipe, without control characters to a terminal."""
        if not text:
            return
        self.clear_status()
        self._out.write(safe_text(text) if self._out_is_terminal else text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")

    def end_reply(self) -> None:
        """End the line of the reply."""
        self.clear_status()
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True

    def summary(self, summary: Summary) -> None:
        """Say in a dim line what the reply took; nothing where nobody watches."""
        if self._err_is_terminal:
            self._write_err(self._styled(_DIM, summary_line(summary)) + "\n")

    def notice(self, text: str) -> None:
        """Write a line for the person on stderr."""
        self.clear_status()
        self._write_err(safe_text(text) + "\n")

    def banner(self, name: str, hint: str) -> None:
        """Say which model listens and how to leave."""
        self._write_err(f"{self._styled(_BOLD, safe_text(name))} {self._styled(_DIM, hint)}\n")

    def error(self, text: str) -> None:
        """Write one line that says what is wrong."""
        self.notice(f"error: {text}")

    def clear_status(self) -> None:
        """Erase the status line, if one is shown."""
        if self._status_shown:
            self._write_err(_ERASE_LINE)
            self._status_shown = False

    def _draw_status(self, text: str) -> None:
        self._write_err(_ERASE_LINE + self._styled(_DIM, text))
        self._status_shown = True

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self._can_style else text

    def _write_err(self, text: str) -> None:
        self._err.write(text)
        self._err.flush()


def summary_line(summary: Summary) -> str:
    """Return counts, rates and the end of a run in one line."""
    parts = [
        f"{summary.new_tokens} tokens",
        f"{summary.decode_rate:.1f} tok/s",
        f"first token after {summary.first_token_seconds:.2f} s",
        f"prompt {summary.prompt_tokens} tokens at {summary.prefill_rate:.0f} tok/s",
        f"{summary.reused_tokens} reused" if summary.reused_tokens else "",
        _ENDINGS[summary.finish_reason],
    ]
    return ", ".join(part for part in parts if part)
