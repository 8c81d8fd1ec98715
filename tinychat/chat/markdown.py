"""One block of markdown as lines for a terminal."""

from __future__ import annotations

from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from tinychat.chat.safe_text import safe_text

# Without HTML: its tags are shown as the text that they are, instead of vanishing.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
# Colours of the terminal's own palette: they suit a dark ground and a light one.
_CODE_THEME = "ansi_dark"


class _LeftHeading(Heading):
    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _IndentedCode(CodeBlock):
    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 2), background_color="default"
        )


class _ChatMarkdown(Markdown):
    elements: ClassVar = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _IndentedCode,
        "code_block": _IndentedCode,
    }

    def __init__(self, text: str) -> None:
        # No hyperlinks: they would be escape codes whose content a model chose.
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        _keep_line_ends(self.parsed)


class BlockPainter:
    """Turns blocks into styled lines.

    Parameters
    ----------
    console : Console
        Says which styles the terminal has; nothing is written to it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def lines(self, block: str, width: int) -> list[str]:
        """Return the lines of `block`, none wider than `width` columns, with escape codes for styles only."""
        # Before the drawing, so that widths are right; once more after it, for what entities stand for.
        block = safe_text(block)
        # A block may render to nothing, as the definition of a link does; its text is shown then.
        return self._lines(_ChatMarkdown(block), width) or self._lines(Text(block), width)

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


def _keep_line_ends(tokens: list[Token]) -> None:
    """Show a line end as one: models break the lines of verses and addresses without markdown's two spaces."""
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def _without_blank_ends(lines: list[str]) -> list[str]:
    filled = [number for number, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []
