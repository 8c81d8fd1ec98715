"""The tools of a chat: which are on, and how many tokens their text takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinychat.conversation.conversation import Chat
from tinychat.errors import SettingError, ToolError
from tinychat.tools.definitions import Tool
from tinychat.tools.runnable import RunnableTool, Toolbox

_QUESTION = ({"role": "user", "content": "x"},)
# Tools whose text takes more than one in so many parts of the context deserve a warning.
_MUCH = 4


@dataclass
class ShelvedTool:
    """A tool with the name of its group: of `--tools`, or of its MCP server."""

    tool: RunnableTool
    group: str
    is_on: bool = True


class ToolShelf:
    """The tools that a conversation may be given; those that are on are in its toolbox.

    Their order never changes, so that the prompt begins with the same text in every turn, and its cache is used again.
    `tools` has all of them by name.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.tools: dict[str, ShelvedTool] = {}
        self._counts: dict[tuple[object, ...], int] = {}

    @property
    def on(self) -> list[str]:
        """The names of the tools that are on."""
        return [name for name, each in self.tools.items() if each.is_on]

    @property
    def groups(self) -> set[str]:
        """The groups of all tools."""
        return {each.group for each in self.tools.values()}

    def add(self, group: str, tools: Iterable[RunnableTool]) -> None:
        """Add tools of a group and switch them on; `ToolError` if a name is taken."""
        shelf = dict(self.tools)
        for tool in tools:
            name = tool.definition.name
            if name in shelf:
                raise ToolError(f"two tools are called '{name}': leave one of them out")
            shelf[name] = ShelvedTool(tool, group)
        self._fill(shelf)

    def replace(self, group: str, tools: Iterable[RunnableTool]) -> None:
        """Replace the tools of a group, such as a server's after it has changed its list."""
        others = {name: each for name, each in self.tools.items() if each.group != group}
        off = {name for name, each in self.tools.items() if not each.is_on}
        given = {tool.definition.name: ShelvedTool(tool, group, tool.definition.name not in off) for tool in tools}
        self._fill(others | given)

    def switch(self, names: Sequence[str], is_on: bool) -> list[str]:
        """Switch tools, or all of a group, on or off; return the names of those that have changed."""
        found = [name for word in names for name in self._named(word)]
        changed = [name for name in dict.fromkeys(found) if self.tools[name].is_on != is_on]
        for name in changed:
            self.tools[name].is_on = is_on
        self._fill(self.tools)
        return changed

    def keep_to(self, budget: int, first: Sequence[str]) -> list[str]:
        """Switch off what takes more than `budget` tokens, the tools called `first` last; return what is off then."""
        names = self.on
        order = [*(name for name in first if name in names), *(name for name in names if name not in first)]
        staying: list[str] = []
        for name in order:
            if self._count([self.tools[each].tool.definition for each in (*staying, name)]) <= budget:
                staying.append(name)
        return self.switch([name for name in names if name not in staying], is_on=False)

    def tokens(self) -> int:
        """Return the tokens that the text of all tools that are on takes in a prompt."""
        return self._count(self._chat.tools.toolbox.definitions)

    def tokens_of(self, name: str) -> int:
        """Return the tokens that a tool adds to those of the others that are on."""
        others = [self.tools[each].tool.definition for each in self.on if each != name]
        return self._count([*others, self.tools[name].tool.definition]) - self._count(others)

    def warning(self) -> str | None:
        """Return a line about tools that take much of the context, None if they do not."""
        tokens, size = self.tokens(), self._chat.model.context_size
        if _MUCH * tokens <= size:
            return None
        return (
            f"the tools take {tokens} of the {size} tokens of the context: /tools off NAME switches some off, "
            "/set context N enlarges it"
        )

    def _named(self, word: str) -> list[str]:
        found = [name for name, each in self.tools.items() if word in (name, each.group)]
        if not found:
            known = ", ".join([*self.tools]) or "none"
            raise SettingError(f"there is no tool or group {word!r}: there are {known}")
        return found

    def _fill(self, shelf: dict[str, ShelvedTool]) -> None:
        """Give the conversation the tools that are on; `ToolError` leaves all as it was."""
        self._chat.tools.toolbox = Toolbox(each.tool for each in shelf.values() if each.is_on)
        self.tools = shelf

    def _count(self, tools: Sequence[Tool]) -> int:
        model = self._chat.model
        key = (model.template, *(tool.name for tool in tools), *(id(tool) for tool in tools))
        if key not in self._counts:
            without = len(model.chat_prompt(_QUESTION).ids)
            given = len(model.chat_prompt(_QUESTION, tools=[tool.as_dict() for tool in tools]).ids)
            self._counts[key] = given - without
        return self._counts[key]
