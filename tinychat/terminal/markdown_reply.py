"""A reply rendered as Markdown while it streams, its think section dimmed or hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TextIO

from rich.console import Console

from tinychat.terminal.blocks import Blocks
from tinychat.terminal.live_block import LiveBlock, TerminalSize
from tinychat.terminal.markdown import BlockRenderer
from tinychat.terminal.safe_text import safe_text
from tinychat.terminal.wrapping import WordWrap
from tinychat.text.think_sections import ThinkSections

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
# Rendering must not slow the model down: it takes at most a twentieth of the time, unless one rendering takes longer
# than a fortieth of a second; no word waits longer than half a second.
_LEAST_PAUSE_SECONDS, _PAUSE_PER_DRAWING, _MOST_PAUSE_SECONDS = 0.05, 19.0, 0.5


class MarkdownReply:
    """Renders one reply on a terminal with escape codes: finished blocks once, the open one several times a second.

    `size` returns columns and rows; of `environment`, TERM, COLORTERM and NO_COLOR are read. `on_hidden` is called with
    the length of the think section so far and whether it has ended, instead of showing it. `thinking` tells whether the
    reply begins inside its think section.
    """

    def __init__(
        self,
        out: TextIO,
        size: TerminalSize,
        environment: Mapping[str, str],
        on_hidden: Callable[[int, bool], None] | None = None,
        clock: Callable[[], float] = perf_counter,
        thinking: bool = False,
    ) -> None:
        self._out, self._size, self._clock, self._on_hidden = out, size, clock, on_hidden
        self._has_style = not environment.get("NO_COLOR")
        console = Console(
            file=out, force_terminal=True, color_system="auto" if self._has_style else None, _environ=environment
        )
        self._renderer = BlockRenderer(console)
        self._live = LiveBlock(out.write, size)
        self._sections, self._blocks = ThinkSections(thinking), Blocks()
        self._thought = 0
        self._thinking = WordWrap(lambda: size()[0])
        self._next_drawing = 0.0
        self._has_drawn = False
        self._interjections: list[Callable[[], None]] = []

    def feed(self, text: str) -> None:
        """Add a delta, and render if the last rendering is long enough ago."""
        for part in self._sections.feed(text):
            self._add(part.text, part.thinking)
        if self._blocks.open.strip() and self._clock() >= self._next_drawing:
            self._draw()
        self._out.flush()

    def finish(self) -> None:
        """Render the rest, and end the line."""
        for part in self._sections.finish():
            self._add(part.text, part.thinking)
        self._end_thinking()
        block = self._blocks.open.strip("\n")
        if block.strip():
            self._finish_block(block)
        self._interject()
        self._out.flush()

    def interject(self, write: Callable[[], None]) -> None:
        """Call `write`, which writes whole lines, after the present block or think section."""
        self._interjections.append(write)
        if not self._thought and not self._blocks.open.strip():
            self._interject()

    def _interject(self) -> None:
        waiting, self._interjections = self._interjections, []
        if waiting and self._has_drawn:
            self._out.write("\n")
        self._out.flush()
        for write in waiting:
            write()

    def _finish_block(self, block: str) -> None:
        self._live.finish(self._rendered(block))
        self._has_drawn = True
        self._interject()

    def _add(self, text: str, thinking: bool) -> None:
        if thinking:
            self._think(text)
            return
        self._end_thinking()
        for block in self._blocks.feed(text):
            self._finish_block(block)

    def _think(self, text: str) -> None:
        self._thought += len(text)
        if self._on_hidden is not None:
            self._on_hidden(self._thought, False)
            return
        self._write_dim(self._thinking.feed(safe_text(text)))

    def _write_dim(self, text: str) -> None:
        if text:
            self._out.write(f"{_DIM}{text}{_RESET}" if self._has_style else text)

    def _end_thinking(self) -> None:
        if not self._thought:
            return
        if self._on_hidden is not None:
            self._on_hidden(self._thought, True)
        else:
            self._write_dim(self._thinking.finish())
            self._out.write("\n\n" if self._thinking.column else "\n")
        self._thought = 0
        self._interject()

    def _draw(self) -> None:
        begun = self._clock()
        self._live.show(self._rendered(self._blocks.open.rstrip().lstrip("\n")))
        ended = self._clock()
        pause = max(_LEAST_PAUSE_SECONDS, _PAUSE_PER_DRAWING * (ended - begun))
        self._next_drawing = ended + min(pause, _MOST_PAUSE_SECONDS)

    def _rendered(self, block: str) -> list[str]:
        return self._renderer.lines(block, self._size()[0])
