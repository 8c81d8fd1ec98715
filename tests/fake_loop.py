"""A chat loop for slash commands, without input, that records notices and writes replies at once; prepared input."""

import io
from types import SimpleNamespace

from fake_model import Replies, fake_model

from tinychat.chat.commands import complete_command, run_command
from tinychat.chat.loop import ChatLoop
from tinychat.chat.workspace import Models, Workspace
from tinychat.conversation.conversation import Chat
from tinychat.terminal.clipboard import offer_to_terminal
from tinychat.terminal.rendering import Renderer


class Recorder(Renderer):
    """Writes replies nowhere, and keeps notices; `terminal` is one that may have a clipboard."""

    def __init__(self):
        super().__init__(io.StringIO(), io.StringIO(), {})
        self.notices = []
        self.terminal = None

    def notice(self, text):
        self.notices.append(text)

    def progress(self, title):
        return lambda done, total: self.notice(f"{title} {done}/{total}")

    def offer_to_terminal(self, text):
        return self.terminal is not None and offer_to_terminal(text, self.terminal)


class Script:
    """Gives prepared lines to prompts and questions; an exception in their place is raised."""

    def __init__(self, lines, interactive):
        self.interactive, self.prompts = interactive, []
        self._lines = list(lines)

    def read(self, prompt):
        self.prompts.append(prompt)
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        if isinstance(line, type):
            raise line
        return line


class FakeLoop(ChatLoop):
    """The loop, whose user `agrees` or not."""

    def __init__(self, *replies, model=None, open_model=None, clock=None, **settings):
        sequence = {
            key: settings.pop(key) for key in ("context_size", "chunk_size", "trained_length") if key in settings
        }
        chat = Chat(model or fake_model(Replies(*replies), **sequence), temperature=0.0, **settings)
        extras = {"models": Models(open_model)} if open_model else {}
        extras |= {"clock": clock} if clock else {}
        super().__init__(chat, SimpleNamespace(interactive=False), Recorder(), Workspace(chat, **extras))
        chat.on_notice = self.notice
        self.agrees = True

    @property
    def notices(self):
        return self.renderer.notices

    def confirm(self, question):
        self.notice(question)
        return self.agrees

    @property
    def prefilled(self):
        return self.draft.text

    def run(self, line):
        """Run a command and return its notices."""
        self.notices.clear()
        run_command(self, line)
        return "\n".join(self.notices)

    def candidates(self, line):
        """Return the words that may stand for the last one of a line."""
        return [candidate.text for candidate in complete_command(self, line)]

    @property
    def spoken(self):
        return [message.content for message in self.chat.messages]


def loop_after(*turns, **settings):
    """Return a loop after these (message, reply) turns, with spare replies "again" behind them."""
    loop = FakeLoop(*(reply for _, reply in turns), "again", "once more", **settings)
    for message, _ in turns:
        loop.chat.say(message)
    return loop
