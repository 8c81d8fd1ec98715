"""Rendering of Markdown blocks as lines of a terminal."""

from __future__ import annotations

from time import perf_counter
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from tinychat.terminal.formulas import add_formulas
from tinychat.terminal.markdown_inline import LINK_STYLE, adapt_inline, add_operators
from tinychat.terminal.markdown_table import FoldedTable
from tinychat.terminal.safe_text import safe_text

# Without HTML: its tags are shown as text.
_PARSER = add_operators(add_formulas(MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])))
_CODE_THEME = "ansi_dark"
_NO_LEXER = "text"
# Rich's default has a black background.
_THEME = Theme({"markdown.code": "bold cyan"})
# Characters; growth from one trial to the next; seconds of a slow rendering, after which a reply gets no more colours.
_LONGEST_HIGHLIGHTED, _FIRST_STEP, _STEP, _SLOW_SECONDS = 2000, 64, 1.5, 0.1


class _LeftHeading(Heading):
    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Rule(HorizontalRule):
    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")
        yield Text()


class _Highlighter:
    """Highlights code until that takes too long: some lexers take cubic time or worse.

    Beginnings of growing length are tried first, to detect a slow lexer early. Code that streams in grows anyway.
    """

    def __init__(self) -> None:
        self._is_slow = False
        self._drawn: dict[str, str] = {}

    def render(self, code: str, lexer: str, console: Console, options: ConsoleOptions) -> list[Segment]:
        """Return code as segments, in colours if the lexer is fast."""
        if len(code) > _LONGEST_HIGHLIGHTED:
            return self._rendered(code, _NO_LEXER, console, options)
        drawn = self._drawn.get(lexer, "")
        length = max(_FIRST_STEP, int(_STEP * len(drawn)) if code.startswith(drawn) else 0)
        while length < len(code) and not self._is_slow:
            self._rendered(code[:length], lexer, console, options)
            length = int(_STEP * length)
        self._drawn[lexer] = code
        return self._rendered(code, _NO_LEXER if self._is_slow else lexer, console, options)

    def _rendered(self, code: str, lexer: str, console: Console, options: ConsoleOptions) -> list[Segment]:
        begun = perf_counter()
        # Colours of the terminal's own palette: readable on a dark and on a light background.
        syntax = Syntax(code, lexer, theme=_CODE_THEME, word_wrap=True, padding=(0, 2), background_color="default")
        segments = [*console.render(syntax, options)]
        self._is_slow |= lexer != _NO_LEXER and perf_counter() - begun > _SLOW_SECONDS
        return segments


class _IndentedCode(CodeBlock):
    highlighter: _Highlighter

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _IndentedCode:
        block = cls(token.info.partition(" ")[0] or _NO_LEXER, markdown.code_theme)
        assert isinstance(markdown, _ChatMarkdown)
        block.highlighter = markdown.highlighter
        return block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.highlighter.render(str(self.text).rstrip(), self.lexer_name, console, options)


class _ChatMarkdown(Markdown):
    elements: ClassVar = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _IndentedCode,
        "code_block": _IndentedCode,
        "table_open": FoldedTable,
        "hr": _Rule,
    }

    def __init__(self, text: str, highlighter: _Highlighter) -> None:
        # No hyperlinks: they are escape codes with content of the model.
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.highlighter = highlighter
        self.parsed = _PARSER.parse(text)
        self.inlines = Markdown.inlines | {LINK_STYLE}
        adapt_inline(self.parsed)


class BlockRenderer:
    """Renders blocks as styled lines, in the styles that `console` supports; nothing is written to it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._console.push_theme(_THEME)
        self._highlighter = _Highlighter()

    def lines(self, block: str, width: int) -> list[str]:
        """Return the lines of `block`, at most `width` columns wide, with escape codes for styles only."""
        # Before rendering, for correct widths; again after it, since entities become characters there.
        block = safe_text(block)
        # A block that renders to nothing, such as a link definition, is shown as text.
        return self._lines(_ChatMarkdown(block, self._highlighter), width) or self._lines(Text(block), width)

    def _lines(self, content: _ChatMarkdown | Text, width: int) -> list[str]:
        options = self._console.options.update(width=width, height=None)
        rendered = self._console.render_lines(content, options, pad=False)
        return _without_blank_ends([self._line(segments) for segments in rendered])

    def _line(self, segments: list[Segment]) -> str:
        shown = [segment for segment in segments if not segment.control]
        while shown and not shown[-1].text.strip():
            shown.pop()
        if shown:
            shown[-1] = shown[-1]._replace(text=shown[-1].text.rstrip())
        return "".join(self._styled(segment) for segment in shown)

    def _styled(self, segment: Segment) -> str:
        text = safe_text(segment.text)
        name = self._console.color_system
        return segment.style.render(text, color_system=COLOR_SYSTEMS[name]) if segment.style and name else text


def _without_blank_ends(lines: list[str]) -> list[str]:
    filled = [number for number, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []
