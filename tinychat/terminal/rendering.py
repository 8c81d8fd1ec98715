"""The output of the program: the model's text on stdout, everything else on stderr."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, TextIO

from tinychat.generate.reply import FinishReason, Summary
from tinychat.terminal.clipboard import offer_to_terminal
from tinychat.terminal.plain_reply import PlainReply
from tinychat.terminal.safe_text import safe_text
from tinychat.terminal.status_line import meter, summary_line
from tinychat.terminal.wrapping import NO_BREAK_SPACE, wrapped

if TYPE_CHECKING:
    from tinychat.terminal.markdown_reply import MarkdownReply

_DIM, _BOLD, _RESET, _ERASE_LINE = "\x1b[2m", "\x1b[1m", "\x1b[0m", "\r\x1b[K"

_DEFAULT_SIZE = (80, 24)
# Shorter prompts are processed before anybody could read the line.
_STATUS_FROM_TOKENS = 64
# For the program behind a pipe to read a reply, and to show it.
_READING_SECONDS, _SHOWING_SECONDS = 0.2, 0.01
_CUTS: Mapping[FinishReason, str] = {
    "length": "the reply is cut at the token limit: raise --max-tokens",
    "context": "the reply is cut, the context is full: raise --context",
    "loop": "the reply is cut, it repeats itself: --loop-stop off allows that",
}


class Renderer:
    """Writes a conversation to two text streams: the model's text; status lines, notices and errors.

    Of `environment`, NO_COLOR, TERM and COLORTERM are read. `plain` shows replies as plain text on terminals too.
    `show_stats` shows counts and rates of each reply, None if stderr is a terminal. `starts_thinking` tells whether the
    chat template has opened the think section of the next reply. `cuts` are the lines about replies that were cut.
    """

    def __init__(self, out: TextIO, err: TextIO, environment: Mapping[str, str], plain: bool = False) -> None:
        dumb = environment.get("TERM", "") == "dumb"
        self.show_thinking = True
        self.starts_thinking = False
        self.show_stats: bool | None = None
        self.cuts = _CUTS
        self._out, self._err, self._environment = out, err, environment
        self._draws_markdown = out.isatty() and not dumb and not plain
        self._err_is_terminal = err.isatty()
        self._can_erase = self._err_is_terminal and not dumb
        self._can_style = self._can_erase and not environment.get("NO_COLOR")
        self._status_shown = False
        self._reply: PlainReply | MarkdownReply | None = None

    def prefill_progress(self, done: int, total: int) -> None:
        """Show the progress of a prefill, if stderr can erase the line."""
        if total >= _STATUS_FROM_TOKENS:
            self._draw_status(f"reading the prompt {100 * done // total} %")

    def summary_progress(self, characters: int) -> None:
        """Show the length of a summary being written."""
        self._draw_status(f"summarising, {characters} characters")

    def tool_progress(self, name: str) -> None:
        """Show the name of a tool that runs."""
        self._draw_status(f"running {safe_text(name)}")

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Return a callback of (done, total) that shows a bar until the next notice, or the title once as a line."""
        is_shown = False

        def show(done: int, total: int) -> None:
            nonlocal is_shown
            share = done / max(total, 1)
            if self._can_erase:
                self._draw_status(f"{meter(share)} {share:.0%} {title}")
            elif not is_shown:
                self.notice(title)
            is_shown = True

        return show

    def text(self, text: str) -> None:
        """Write a delta of the reply."""
        if not text:
            return
        if self._reply is None:
            self.clear_status()
            self._reply = self._begin_reply()
        self._reply.feed(text)

    def end_reply(self) -> None:
        """Write the rest of the reply and end its line."""
        self.clear_status()
        if self._reply is not None:
            self._reply.finish()
            self._reply = None
            if self._err_is_terminal:
                # Through tee the reply would otherwise appear after lines of stderr that follow it.
                _wait_until_read(self._out)

    def summary(self, summary: Summary) -> None:
        """Write a line of counts and rates; if that is off, or the counts are unknown, only if the reply was cut."""
        shown = self._err_is_terminal if self.show_stats is None else self.show_stats
        # Some servers tell no counts; every prompt has tokens.
        if shown and summary.prompt_tokens:
            self.aside(summary_line(summary, terminal_size(self._err)[0]))
        elif summary.finish_reason in self.cuts:
            self._write_err(f"{self.cuts[summary.finish_reason]}\n")

    def notice(self, text: str) -> None:
        """Write a line to stderr, during a reply between two of its blocks."""
        if self._reply is not None:
            self._reply.interject(partial(self._write_notice, text))
        else:
            self._write_notice(text)

    def aside(self, text: str) -> None:
        """Write a dim line to stderr between two replies."""
        self.clear_status()
        self._write_err(self._styled(_DIM, self._wrapped(safe_text(text))) + "\n")

    def gap(self) -> None:
        """Write an empty line between two turns."""
        if self._err_is_terminal:
            self._write_err("\n")

    def _write_notice(self, text: str) -> None:
        self.clear_status()
        self._write_err(self._wrapped(safe_text(text)) + "\n")

    def offer_to_terminal(self, text: str) -> bool:
        """Ask the terminal to copy `text` to the clipboard; return False if it cannot."""
        return self._can_erase and offer_to_terminal(text, self._err)

    def banner(self, name: str, hint: str) -> None:
        """Write the model's name and a hint."""
        name = safe_text(name)
        text = self._wrapped(f"{name} {hint}")
        self._write_err(f"{self._styled(_BOLD, text[: len(name)])}{self._styled(_DIM, text[len(name) :])}\n")

    def exchange(self, message: str, reply: str) -> None:
        """Show an earlier message and its reply: dim, the last lines of each."""
        columns, rows = terminal_size(self._err)
        texts = (wrapped(safe_text(text), columns - 1).split("\n") for text in (f"> {message.strip()}", reply.strip()))
        for lines in texts:
            for line in _last_lines(lines, max(rows // 3, 3)):
                self._write_err(self._styled(_DIM, line) + "\n")

    def error(self, text: str) -> None:
        """Write an error."""
        self.notice(f"error: {text}")

    def clear_status(self) -> None:
        """Erase the status line."""
        if self._status_shown:
            self._write_err(_ERASE_LINE)
            self._status_shown = False

    def _begin_reply(self) -> PlainReply | MarkdownReply:
        if not self._draws_markdown:
            return PlainReply(self._out)
        # Imported here: only a terminal needs it, and it takes a tenth of a second.
        from tinychat.terminal.markdown_reply import MarkdownReply

        on_hidden = None if self.show_thinking else self._show_thought_length
        size = partial(terminal_size, self._out)
        return MarkdownReply(self._out, size, self._environment, on_hidden, thinking=self.starts_thinking)

    def _show_thought_length(self, characters: int, ended: bool) -> None:
        if not ended:
            self._draw_status(f"thinking, {characters} characters")
            return
        self.clear_status()
        if self._err_is_terminal:
            self.aside(f"thought {characters} characters; /set think show shows the next")

    def _draw_status(self, text: str) -> None:
        if self._can_erase:
            # A wrapped line could not be erased.
            text = text[: terminal_size(self._err)[0] - 1]
            self._write_err(_ERASE_LINE + self._styled(_DIM, text))
            self._status_shown = True

    def _wrapped(self, text: str) -> str:
        """Return `text`, wrapped if stderr is a terminal."""
        found = wrapped(text, terminal_size(self._err)[0]) if self._err_is_terminal else text
        # What they held together stands: who copies or searches a line wants plain ones.
        return found.replace(NO_BREAK_SPACE, " ")

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self._can_style else text

    def _write_err(self, text: str) -> None:
        self._err.write(text)
        self._err.flush()


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows of the terminal of `stream`, by default 80 and 24."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _DEFAULT_SIZE
    return columns or _DEFAULT_SIZE[0], rows or _DEFAULT_SIZE[1]


def _wait_until_read(out: TextIO) -> None:
    """Wait, at most a fifth of a second, until the program behind a pipe has read and shown the text."""
    if sys.platform == "win32":
        return
    try:
        import fcntl
        import termios

        descriptor = out.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
        until, unread = monotonic() + _READING_SECONDS, bytearray(4)
        while monotonic() < until:
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
            sleep(_SHOWING_SECONDS)
            if not any(unread):
                return
    except (OSError, ValueError):
        return


def _last_lines(lines: Sequence[str], count: int) -> Sequence[str]:
    return lines if len(lines) <= count else ["...", *lines[-count:]]
