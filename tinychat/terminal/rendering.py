"""Everything that is drawn: the model's text on stdout, all else on stderr, and the line below the prompt."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, TextIO

from tinychat.generate.reply import FinishReason, Summary
from tinychat.terminal.blocks import Blocks
from tinychat.terminal.clipboard import offer_to_terminal
from tinychat.terminal.safe_text import safe_text
from tinychat.terminal.wrapping import wrapped

if TYPE_CHECKING:
    from tinychat.terminal.markdown_reply import MarkdownReply

_DIM, _BOLD, _RESET, _ERASE_LINE = "\x1b[2m", "\x1b[1m", "\x1b[0m", "\r\x1b[K"

_DEFAULT_SIZE = (80, 24)
_METER_CELLS = 10

# The rate of a few tokens is that of chance.
_LEAST_FOR_RATE = 16
# Shorter prompts are read before the eye has found the line.
_STATUS_FROM_TOKENS = 64
# For the program behind a pipe to read a reply, and to show it.
_READING_SECONDS, _SHOWING_SECONDS = 0.2, 0.01

_ENDINGS: Mapping[FinishReason, str] = {
    "stop": "",
    "stop_string": "stop text met",
    "length": "cut at the token limit",
    "context": "the context is full",
    "loop": "ended: it repeats itself",
    "interrupted": "stopped",
}

_CUTS: Mapping[FinishReason, str] = {
    "length": "the reply is cut at the token limit: --max-tokens sets another",
    "context": "the reply is cut: the context is full, and --context asks for a larger one",
    "loop": "the reply is cut: it repeats itself, and --loop-stop off lets it",
}


class PlainReply:
    """Writes a reply as it comes: to a file or pipe unchanged, to a terminal without control characters."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._at_line_start = True
        self._blocks = Blocks()
        self._interjections: list[Callable[[], None]] = []

    def feed(self, text: str) -> None:
        """Write the next piece."""
        ended = bool(self._blocks.feed(text)) if self._is_terminal else False
        if ended and self._interjections:
            end = len(text) - len(self._blocks.open)
            self._write(text[:end])
            self._interject()
            self._out.write("\n")
            text = text[end:]
        self._write(text)

    def interject(self, write: Callable[[], None]) -> None:
        """Let `write` write whole lines; on a terminal, once the block that is being written has ended."""
        self._interjections.append(write)
        if not self._is_terminal or not self._blocks.open.strip():
            self._interject()

    def _interject(self) -> None:
        waiting, self._interjections = self._interjections, []
        for write in waiting:
            write()

    def _write(self, text: str) -> None:
        if text:
            self._out.write(safe_text(text) if self._is_terminal else text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")

    def finish(self) -> None:
        """End the line that was begun."""
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True
        self._interject()


class Renderer:
    """Draws a conversation on two text streams.

    Parameters
    ----------
    out : text stream
        Gets the model's text: drawn as markdown on a terminal, else as it is.
    err : text stream
        Gets status lines, notices and errors.
    environment : mapping
        Environment variables; NO_COLOR, TERM and COLORTERM are read.
    plain : bool
        Show the model's text as it is on terminals too.

    Attributes
    ----------
    show_thinking : bool
        Whether the think section of a reply is drawn, or folded into a line.
    show_stats : bool or None
        Whether what each reply took is shown; None where somebody watches.
    starts_thinking : bool
        Whether replies begin inside their think section, which the chat template opened.
    """

    def __init__(self, out: TextIO, err: TextIO, environment: Mapping[str, str], plain: bool = False) -> None:
        dumb = environment.get("TERM", "") == "dumb"
        self.show_thinking = True
        self.starts_thinking = False
        self.show_stats: bool | None = None
        self._out, self._err, self._environment = out, err, environment
        self._draws_markdown = out.isatty() and not dumb and not plain
        self._err_is_terminal = err.isatty()
        self._can_erase = self._err_is_terminal and not dumb
        self._can_style = self._can_erase and not environment.get("NO_COLOR")
        self._status_shown = False
        self._reply: PlainReply | MarkdownReply | None = None

    def prefill_progress(self, done: int, total: int) -> None:
        """Show how much of the prompt has been read; nothing where the line could not be erased."""
        if total >= _STATUS_FROM_TOKENS:
            self._draw_status(f"reading the prompt {100 * done // total} %")

    def summary_progress(self, characters: int) -> None:
        """Show how much of a summary of old turns has been written."""
        self._draw_status(f"summarising, {characters} characters")

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Return a callback of (done, total) that shows a bar until the next notice, or the title as one."""
        is_said = False

        def show(done: int, total: int) -> None:
            nonlocal is_said
            share = done / max(total, 1)
            if self._can_erase:
                self._draw_status(f"{_meter(share)} {share:.0%} {title}")
            elif not is_said:
                self.notice(title)
            is_said = True

        return show

    def text(self, text: str) -> None:
        """Draw a piece of the reply."""
        if not text:
            return
        if self._reply is None:
            self.clear_status()
            self._reply = self._begin_reply()
        self._reply.feed(text)

    def end_reply(self) -> None:
        """Draw what is left of the reply and end its line."""
        self.clear_status()
        if self._reply is not None:
            self._reply.finish()
            self._reply = None
            if self._err_is_terminal:
                # Behind tee the reply would else be shown among the lines that follow it here.
                _wait_until_read(self._out)

    def summary(self, summary: Summary) -> None:
        """Say in a dim line what the reply took; where that is not shown, only that it was cut."""
        shown = self._err_is_terminal if self.show_stats is None else self.show_stats
        if shown:
            line = summary_line(summary, terminal_size(self._err)[0])
            self._write_err(self._styled(_DIM, self._broken(line)) + "\n")
        elif summary.finish_reason in _CUTS:
            self._write_err(f"{_CUTS[summary.finish_reason]}\n")

    def notice(self, text: str) -> None:
        """Write a line for the user on stderr, in mid-reply between two of its blocks."""
        if self._reply is not None:
            self._reply.interject(partial(self._write_notice, text))
        else:
            self._write_notice(text)

    def gap(self) -> None:
        """Leave a line free before the next turn."""
        if self._err_is_terminal:
            self._write_err("\n")

    def _write_notice(self, text: str) -> None:
        self.clear_status()
        self._write_err(self._broken(safe_text(text)) + "\n")

    def offer_to_terminal(self, text: str) -> bool:
        """Ask the terminal to take `text` into its clipboard; return whether it could be asked."""
        return self._can_erase and offer_to_terminal(text, self._err)

    def banner(self, name: str, hint: str) -> None:
        """Name the model, and say how to leave."""
        name = safe_text(name)
        text = self._broken(f"{name} {hint}")
        self._write_err(f"{self._styled(_BOLD, text[: len(name)])}{self._styled(_DIM, text[len(name) :])}\n")

    def exchange(self, message: str, reply: str) -> None:
        """Show a message and its reply as what was before: dim, the last lines of each."""
        columns, rows = terminal_size(self._err)
        texts = (wrapped(safe_text(text), columns - 1).split("\n") for text in (f"> {message.strip()}", reply.strip()))
        for lines in texts:
            for line in _last_lines(lines, max(rows // 3, 3)):
                self._write_err(self._styled(_DIM, line) + "\n")

    def error(self, text: str) -> None:
        """Write one line that says what is wrong."""
        self.notice(f"error: {text}")

    def clear_status(self) -> None:
        """Erase the status line, if one is shown."""
        if self._status_shown:
            self._write_err(_ERASE_LINE)
            self._status_shown = False

    def _begin_reply(self) -> PlainReply | MarkdownReply:
        if not self._draws_markdown:
            return PlainReply(self._out)
        # Imported here: only a terminal needs it, and it takes a tenth of a second.
        from tinychat.terminal.markdown_reply import MarkdownReply

        on_folded = None if self.show_thinking else self._show_folded
        size = partial(terminal_size, self._out)
        return MarkdownReply(self._out, size, self._environment, on_folded, thinking=self.starts_thinking)

    def _show_folded(self, characters: int, ended: bool) -> None:
        if not ended:
            self._draw_status(f"thinking, {characters} characters")
            return
        self.clear_status()
        if self._err_is_terminal:
            line = f"thought {characters} characters; /set think show unfolds the next"
            self._write_err(self._styled(_DIM, self._broken(line)) + "\n")

    def _draw_status(self, text: str) -> None:
        if self._can_erase:
            # A line that the terminal breaks could not be erased.
            text = text[: terminal_size(self._err)[0] - 1]
            self._write_err(_ERASE_LINE + self._styled(_DIM, text))
            self._status_shown = True

    def _broken(self, text: str) -> str:
        """Return a text for stderr, on a terminal broken between words."""
        return wrapped(text, terminal_size(self._err)[0]) if self._err_is_terminal else text

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self._can_style else text

    def _write_err(self, text: str) -> None:
        self._err.write(text)
        self._err.flush()


def summary_line(summary: Summary, width: int | None = None) -> str:
    """Return counts, rates and the end of a run; the prompt's are left out where `width` columns are too few."""
    written = [
        f"{summary.new_tokens} tokens",
        decode_rate(summary),
        f"first token after {summary.first_token_seconds:.2f} s",
    ]
    rate = prefill_rate(summary)
    read = [
        f"prompt {summary.prompt_tokens} tokens{' at ' if rate else ''}{rate}",
        f"{summary.reused_tokens} reused" if summary.reused_tokens else "",
    ]
    ending = _ENDINGS[summary.finish_reason]
    whole = ", ".join(part for part in [*written, *read, ending] if part)
    if width is None or len(whole) < width:
        return whole
    return ", ".join(part for part in [*written, ending] if part)


def decode_rate(summary: Summary) -> str:
    """Return the rate at which a reply was written; nothing for so few tokens that it says nothing."""
    return f"{summary.decode_rate:.1f} tok/s" if summary.new_tokens >= _LEAST_FOR_RATE else ""


def prefill_rate(summary: Summary) -> str:
    """Return the rate at which the new part of a prompt was read; nothing where it was that short."""
    run = summary.prompt_tokens - summary.reused_tokens
    return f"{summary.prefill_rate:.0f} tok/s" if run >= _LEAST_FOR_RATE else ""


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows of the terminal behind `stream`, or what is usual."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _DEFAULT_SIZE
    return columns or _DEFAULT_SIZE[0], rows or _DEFAULT_SIZE[1]


def _wait_until_read(out: TextIO) -> None:
    """Wait until another program has read what was written to a pipe, a fifth of a second at most, and shown it."""
    try:
        # Imported here: Windows has neither.
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
    except (ImportError, OSError, ValueError):
        return


def status_bar(name: str, used: int, size: int, attached: Sequence[str], last: Summary | None, width: int) -> str:
    """Return the line below the prompt; what does not fit is left out, least needed first.

    Parameters
    ----------
    name : str
        What the model is called.
    used, size : int
        Tokens that the conversation takes, and those that the context holds.
    attached : sequence of str
        Names of what goes with the next message.
    last : Summary, optional
        What the last reply took.
    width : int
        Columns of the terminal.
    """
    # A conversation may have more than a context that was made smaller holds.
    used = min(used, size)
    context = f"context {used}/{size}"
    meter = _meter(used / size)
    rate = "" if last is None else decode_rate(last)
    names, count = (f"attached: {what}" if attached else "" for what in (", ".join(attached), len(attached)))
    variants = (
        [name, f"{context} {meter}", names, rate],
        [name, f"{context} {meter}", count, rate],
        [name, context, count, rate],
        [context, count, rate],
        [context, count],
        [f"{used}/{size}{f' +{len(attached)}' if attached else ''}"],
    )
    lines = (" · ".join(part for part in parts if part) for parts in variants)
    return next((line for line in lines if len(line) < width), f"{used}/{size}")


def _last_lines(lines: Sequence[str], count: int) -> Sequence[str]:
    return lines if len(lines) <= count else ["...", *lines[-count:]]


def _meter(share: float) -> str:
    filled = round(_METER_CELLS * min(share, 1.0))
    return "▰" * filled + "▱" * (_METER_CELLS - filled)
