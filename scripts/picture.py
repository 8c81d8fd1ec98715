"""Draw a picture of a chat: a real conversation with a model, as the terminal shows it.

    .venv/bin/python scripts/picture.py weights/demo chat.svg "Hello!" "Tell me a story about a cat."

The messages are sent one after the other, greedily, so that the same model gives the same picture but for the
rates. What is seen comes out of the chat's own loop and drawing; a person's part is typed by this script.

With ``--tools`` the answers to the questions for consent stand among the messages, and the tools work in the folder in
which the script is started. With ``--reply`` a grammar prescribes the replies, one after the other, for pictures of
what a small model would not do by itself: whoever shows such a picture says so.
"""

import argparse
import io
import json
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tinychat import load
from tinychat.chat.repl import Repl
from tinychat.chat.tool_setup import set_up_tools
from tinychat.conversation.conversation import Chat
from tinychat.generate.grammar import Grammar
from tinychat.generate.request import Request
from tinychat.settings import ToolSettings
from tinychat.terminal.line_input import InputPrompt
from tinychat.terminal.rendering import Renderer

COLUMNS = 80
_CODE = re.compile(r"\x1b\[(\d*)([AJK])|([\r\n])")
# The reader's own font: a web font would have every reader's browser ask a foreign server.
SVG_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


class Screen(io.StringIO):
    """Stands for a terminal, and knows the few codes that the chat writes."""

    def isatty(self) -> bool:
        """Return True: the chat should draw."""
        return True

    def lines(self) -> list[str]:
        """Return the lines as they stand at the end; the chat writes a line from its beginning or goes on in it."""
        lines, row, at_start = [""], 0, False
        end = 0
        written = self.getvalue()
        for code in [*_CODE.finditer(written), None]:
            if text := written[end : code.start() if code else None]:
                lines[row] = text if at_start else lines[row] + text
                at_start = False
            if code is None:
                break
            end = code.end()
            match code[2] or code[3]:
                case "\n":
                    row += 1
                    at_start = row < len(lines)
                    lines += [""] * (row == len(lines))
                case "\r":
                    at_start = True
                case "A":
                    row -= int(code[1] or 1)
                case erasing:
                    lines[row] = "" if at_start else lines[row]
                    del lines[row + 1 if erasing == "J" else len(lines) :]
        return lines


class Script:
    """Types prepared messages and shows them as the prompt would."""

    interactive = True

    def __init__(self, messages: list[str], screen: Screen) -> None:
        self._messages, self._screen = list(messages), screen

    def read(self, prompt: InputPrompt) -> str:
        """Return the next message, or the answer to a question."""
        if not self._messages:
            raise EOFError
        message = self._messages.pop(0)
        gap = "" if prompt.question else "\n"
        self._screen.write(f"{gap}{prompt.mark}\x1b[1m{message}\x1b[0m\n")
        return message


class PrescribedChat(Chat):
    """A chat whose next replies are prescribed by grammars, as long as there are any in `prescribed`."""

    prescribed: list[str]

    def next_request(self) -> Request:
        """Return the request of the next reply."""
        request = super().next_request()
        if not self.prescribed:
            return request
        text = Grammar.from_text(f"start: {json.dumps(self.prescribed.pop(0))}")
        return replace(request, constraint=self.model.constraint(text))


def converse(arguments: argparse.Namespace) -> list[str]:
    """Return the lines that a terminal shows after the messages have been answered."""
    screen = Screen()
    chat = PrescribedChat(load(arguments.model), temperature=0.0, max_tokens=arguments.max_tokens)
    chat.prescribed = arguments.reply
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    loop = Repl(chat, Script(arguments.messages, screen), Renderer(screen, screen, environment))
    set_up_tools(loop, ToolSettings(tools=arguments.tools), {})
    loop.run()
    return screen.lines()


def picture(lines: list[str]) -> str:
    """Return an SVG of these lines, whose styles are escape codes."""
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("\n".join(lines).rstrip()))
    drawn = console.export_svg(title="tinychat", theme=MONOKAI, code_format=SVG_FORMAT, unique_id="chat")
    return "".join(line.strip() + "\n" for line in drawn.splitlines() if line.strip())


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder or the name of a stored model")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("messages", nargs="+")
    parser.add_argument("--max-tokens", type=int, default=300, help="most tokens of a reply")
    parser.add_argument("--tools", action="append", default=[], help="group of tools; repeatable")
    parser.add_argument("--reply", action="append", default=[], help="text of the next reply; repeatable")
    return parser.parse_args(given)


def main() -> None:
    arguments = parsed()
    arguments.picture.write_text(picture(converse(arguments)), encoding="utf-8")


if __name__ == "__main__":
    main()
