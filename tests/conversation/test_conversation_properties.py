"""Random conversations: what was taken back returns, what was saved is loaded, and no exchange is ever split."""

import json

import pytest
from fake_model import Replies, fake_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import Message, ToolCall, as_messages, check_conversation, exchanges, open_calls
from tinychat.conversation.session_file import SavedSession, from_json, to_json
from tinychat.errors import SettingError

NUMBER = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["say", "regenerate", "stop", "withdraw", "withdraw results", "save and load"])),
    st.tuples(st.sampled_from(["use tools", "use tools and stop", "edit", "undo", "redo"]), NUMBER),
)


def model(context_size):
    """Return a model of replies that differ."""
    return fake_model(
        Replies(*(f"r{number};" for number in range(1000))), context_size=context_size, chunk_size=1 << 20
    )


class Talk:
    """A conversation beside plain tuples of its messages: those before, the present one, those taken back."""

    def __init__(self):
        self.chat = Chat(model(1 << 20), temperature=0.0)
        self.past, self.present, self.future = [], (), []
        self.count = 0

    def text(self, kind):
        """Return a text that no other message has."""
        self.count += 1
        return f"{kind}{self.count};"

    def changed(self):
        self.past.append(self.present)
        self.present, self.future = tuple(self.chat.messages), []

    @property
    def waits(self):
        """Whether a call has no result, as after a step back to where results were withdrawn."""
        return bool(open_calls(self.present))

    def say(self):
        if self.waits:
            with pytest.raises(SettingError, match="has no result yet"):
                self.chat.say("not now")
        else:
            self.chat.say(self.text("q"))
            self.changed()

    def stop(self):
        """Stop a reply behind its first letter."""
        if not self.waits:
            list(self.chat.stream(self.text("q"), cancelled=lambda: bool(self.chat.messages[-1].content)))
            assert self.chat.messages[-1].partial
            self.changed()

    def withdraw(self):
        assert self.waits or list(self.chat.stream(self.text("q"), cancelled=lambda: True)) == []

    def call(self, count):
        """Let the last reply ask for results, and return them."""
        calls = [ToolCall(self.text("c"), "f", f'{{"x": "{self.text("a")}"}}') for _ in range(count)]
        self.chat.messages[-1].tool_calls = tuple(calls)
        return [Message("tool", self.text("t"), tool_call_id=call.id) for call in calls]

    def use_tools(self, count):
        self.say()
        if not self.waits:
            for _ in range(count - 1):
                list(self.chat.extend(self.call(count)))
            self.present = tuple(self.chat.messages)

    def use_tools_and_stop(self, count):
        self.use_tools(count)
        if not self.waits:
            list(self.chat.extend(self.call(count), cancelled=lambda: bool(self.chat.messages[-1].content)))
            self.present = tuple(self.chat.messages)

    def withdraw_results(self):
        """Stop before the reply to results begins: another question takes the place of the exchange that waits."""
        if self.waits:
            return
        self.say()
        results = self.call(1)
        assert list(self.chat.extend(results, cancelled=lambda: True)) == []
        assert [call.id for call in open_calls(self.chat.messages)] == [results[0].tool_call_id]
        list(self.chat.stream(self.text("q"), replaced=1))
        self.changed()

    def regenerate(self):
        if self.present:
            list(self.chat.regenerate())
            self.changed()

    def edit(self, count):
        if 1 <= count <= len(exchanges(self.present)):
            list(self.chat.stream(self.text("q"), replaced=count))
            self.changed()

    def undo(self, count):
        if count <= len(self.past):
            self.chat.undo(count)
            for _ in range(count):
                self.future.append(self.present)
                self.present = self.past.pop()

    def redo(self, count):
        if count <= len(self.future):
            self.chat.redo(count)
            for _ in range(count):
                self.past.append(self.present)
                self.present = self.future.pop()

    def save_and_load(self):
        chat = self.chat
        text = to_json(SavedSession(messages=chat.messages, history=chat.history))
        found = from_json(text.encode(), "talk.json")
        assert (found.messages, found.history) == (chat.messages, chat.history)
        assert to_json(found) == text
        chat.replace_messages(found.messages, found.history)

    def check(self):
        """Check what holds after every step."""
        chat, messages = self.chat, self.chat.messages
        assert tuple(messages) == self.present
        assert (len(chat.history.past), len(chat.history.future)) == (len(self.past), len(self.future))
        check_conversation(messages)
        chat.history.check(messages)
        assert not messages or (messages[0].role, messages[-1].role) == ("user", "assistant")
        if messages:
            plain = json.loads(json.dumps([message.as_dict() for message in messages]))
            assert [message.as_dict() for message in as_messages(plain)] == plain
        # Nothing that is saved stands there twice, but for the title.
        saved = json.loads(to_json(SavedSession(messages=messages, history=chat.history)))
        del saved["about"]
        text = json.dumps(saved)
        for content in {message.content for state in (*self.past, self.present, *self.future) for message in state}:
            assert text.count(f'"content": "{content}"') == 1 or content == "r"

    def walk(self):
        """Go through the whole history, from end to end."""
        states = [*self.past, self.present, *reversed(self.future)]
        if self.future:
            self.redo(len(self.future))
        for state in reversed(states):
            assert tuple(self.chat.messages) == state
            if self.past:
                self.undo(1)
        assert self.chat.messages == []
        for state in states[1:]:
            self.redo(1)
            assert tuple(self.chat.messages) == state


@settings(max_examples=150, deadline=None, database=None)
@given(st.lists(STEPS, max_size=15))
def test_any_conversation_is_whole_at_every_step(steps):
    talk = Talk()
    for name, *arguments in steps:
        getattr(talk, name.replace(" ", "_"))(*arguments)
        talk.check()
    talk.walk()
    talk.save_and_load()
    talk.walk()


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=12), st.sampled_from(["drop", "shift", "summarise"]))
def test_what_a_context_forgets_are_whole_exchanges(turns, overflow):
    """Prompts of any of these conversations fit, and begin with a question."""
    chat = Chat(model(160), temperature=0.0, overflow=overflow)
    for letters, calls in turns:
        chat.say("q" * 8 * letters)
        results = [Message("tool", "t" * letters, tool_call_id=f"{number}") for number in range(calls)]
        chat.messages[-1].tool_calls = tuple(ToolCall(f"{number}", "f") for number in range(calls))
        list(chat.extend(results))
        seen = chat.messages[chat.dropped :]
        assert seen[0].role == "user"
        check_conversation(seen)
        assert len(chat.prompt(seen[:-1]).ids) <= 160
    chat.undo(len(turns))
    assert chat.dropped == 0
