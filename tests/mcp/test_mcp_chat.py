"""Prompts and resources of servers in a chat."""

import io

import pytest
from fake_model import Replies, fake_model

from tinychat.chat.command_servers import complete_prompt
from tinychat.chat.repl import Repl
from tinychat.conversation.conversation import Chat
from tinychat.terminal.rendering import Renderer


class Lines:
    """Gives prepared lines to prompts, and keeps what the prompts began with."""

    def __init__(self, lines, interactive):
        self.interactive, self.begun = interactive, []
        self._lines = iter(lines)

    def read(self, prompt):
        self.begun.append(prompt.text)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


@pytest.fixture
def converse(plain):
    """Return a function that types lines into a chat with a server, and returns the loop, its prompts and stderr."""

    def typed(*lines, interactive=True, mode="offers"):
        chat = Chat(fake_model(Replies("Hello!", "Fine."), context_size=4096), temperature=0.0)
        given, err = Lines(lines, interactive), io.StringIO()
        loop = Repl(chat, given, Renderer(io.StringIO(), err, {}))
        loop.servers["plain"] = plain(mode)
        loop.run()
        return loop, given.begun, err.getvalue()

    return typed


def test_what_servers_offer_is_listed_as_it_is_typed(converse):
    _, _, err = converse("/prompt")
    assert "/prompt plain:greet who=... [how=...]  Greets.\\x1b[2J\n" in err
    assert "/file plain:notes://today  today The notes.\n" in err
    assert "\x1b[2J" not in err


def test_a_prompt_goes_into_the_input_and_nowhere_else(converse):
    loop, begun, _ = converse("/prompt plain:greet 'who=my mother'")
    assert loop.chat.messages == []
    # Neither the command that it looks like, nor with a character that cannot be seen.
    assert begun[1] == " /exit is what my mother says\\u202e"


def test_without_a_terminal_a_prompt_is_sent(converse):
    loop, _, _ = converse("/prompt plain:greet who=Ann", interactive=False)
    assert [message.content for message in loop.chat.messages] == ["/exit is what Ann says\\u202e", "Hello!"]


def test_a_resource_is_attached(converse):
    loop, _, err = converse("/file plain:notes://today")
    assert "attached plain:notes://today (" in err
    assert [one.content for one in loop.chat.attachments] == ["plain:notes://today:\n```\nBuy milk.\n```"]
    assert [*complete_prompt(loop, "")] == [("plain:greet", "who= how= Greets.\\x1b[2J")]
    loop, _, err = converse("/file plain:notes://tomorrow", "/file other:notes://today")
    assert "the MCP server plain refuses resources/read: no resources/read" in err
    assert "other:notes://today" in err
    assert loop.chat.attachments == []


def test_a_server_that_fails_is_one_line_of_the_list(converse):
    loop, _, err = converse("/prompt", mode="refuses")
    assert [*complete_prompt(loop, "")] == []
    assert "the MCP server plain refuses prompts/list: no prompts/list\n" in err
