"""A loop for slash commands: notes what they say, and writes replies at once."""

from fake_model import Replies, fake_model

from tinychat.chat.commands import complete_command, run_command
from tinychat.chat.draft import Draft
from tinychat.chat.workspace import Models, Workspace
from tinychat.conversation.conversation import Chat
from tinychat.terminal.clipboard import offer_to_terminal


class FakeLoop:
    """Keeps notices, the prefilled prompt, and whether the loop was left."""

    def __init__(self, *replies, model=None, open_model=None, clock=None, **settings):
        sequence = {
            key: settings.pop(key) for key in ("context_size", "chunk_size", "trained_length") if key in settings
        }
        self.chat = Chat(model or fake_model(Replies(*replies), **sequence), temperature=0.0, **settings)
        extras = {"models": Models(open_model)} if open_model else {}
        extras |= {"clock": clock} if clock else {}
        self.workspace = Workspace(self.chat, **extras)
        self.chat.on_notice = self.notice
        self.notices = []
        self.draft = Draft()
        self.left = self.multiline = False
        self.show_thinking = True
        self.show_stats = None
        self.terminal = None
        self.agrees = True

    def notice(self, text):
        self.notices.append(text)

    def progress(self, title):
        return lambda done, total: self.notice(f"{title} {done}/{total}")

    def regenerate(self):
        list(self.chat.regenerate())

    def go_on(self):
        list(self.chat.go_on())

    def compact(self, turns):
        return self.chat.compact(turns)

    def confirm(self, question):
        self.notice(question)
        return self.agrees

    def recall(self):
        """Nobody watches."""

    def leave(self):
        self.left = True

    def prefill(self, draft):
        self.draft = draft

    @property
    def prefilled(self):
        return self.draft.text

    def offer_to_terminal(self, text):
        return self.terminal is not None and offer_to_terminal(text, self.terminal)

    def toggle_multiline(self):
        self.multiline = not self.multiline
        return self.multiline

    def run(self, line):
        """Run a command and return what it said."""
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
