"""A conversation with a model: messages in memory, no input and no output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Unpack, cast

from tinychat.chat.history import Change, History
from tinychat.chat.message import Attachment, Message
from tinychat.chat.overflow import as_policy, begins_full, forget_oldest, forgetting_notice, shift_cache
from tinychat.errors import SettingError
from tinychat.generate.loop import Piece
from tinychat.generate.model import Model
from tinychat.generate.prefill import PrefillProgress, prefill
from tinychat.generate.settings import SamplingOptions, SamplingSettings
from tinychat.generate.stopping import as_strings


class Chat:
    """A conversation that remembers.

    The whole conversation is rendered for every reply; what the model's cache already holds of it
    is not computed again, so undoing and regenerating need no bookkeeping here.

    Parameters
    ----------
    model : Model
        Answers; other users of it only cost this conversation its cached beginning.
    system : str, optional
        Standing instruction, before all messages.
    max_tokens : int, optional
        Most tokens of a reply; None for as many as the context holds.
    stop : sequence of str
        Texts that end a reply.
    overflow : {"stop", "drop", "shift"}
        What happens when the context is full: see `OverflowPolicy`. The default, unlike that of the
        command line, loses no turn silently: the reply ends, and a message that no longer fits is refused.
    **sampling
        Fields of `SamplingSettings`. With a seed the conversation can be repeated; the seed grows
        by one with each reply, so that regenerating gives another text.

    Attributes
    ----------
    messages : list of Message
        User and assistant in turn; a stopped reply stays, marked as partial. Every change puts
        a new list here, so an earlier one still shows the conversation as it was.
    history : History
        What the conversation was before each change: see `undo` and `redo`.
    forgotten : int
        How many of the oldest messages the model no longer sees.
    attachments : list of Attachment
        Texts that go with the next message.
    reply_ids : list of int
        Tokens of the last reply of this run of the program.
    writing : bool
        Whether a reply is being written just now.
    on_change : callable
        Called when the messages have changed, and with every piece of a reply.
    on_notice : callable
        Called with a line for the person, when turns were forgotten.

    Raises
    ------
    SettingError
        If a setting is out of range.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        overflow: str = "stop",
        **sampling: Unpack[SamplingOptions],
    ) -> None:
        self.model = model
        self.system = system
        self.messages: list[Message] = []
        self.history = History()
        self.forgotten = 0
        self.attachments: list[Attachment] = []
        self.sampling = SamplingSettings(**sampling)
        self.max_tokens = max_tokens
        self.stop = as_strings(stop)
        self.overflow = as_policy(overflow)
        self.reply_ids: list[int] = []
        self.writing = False
        self.on_change: Callable[[], None] = lambda: None
        self.on_notice: Callable[[str], None] = lambda text: None
        self._replies = self._seeded_since = 0

    def say(self, text: str) -> str:
        """Send a message and return the whole reply.

        Raises
        ------
        ContextError
            If the conversation no longer fits into the context; the message is withdrawn.
        TextError
            If the chat template refuses the conversation; the message is withdrawn.
        """
        return "".join(piece.text for piece in self.stream(text))

    def stream(
        self,
        text: str,
        *,
        replaced: int = 0,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Iterator[Piece]:
        """Send a message, attachments before it, and yield the reply piece by piece.

        A reply that ends early, by `cancelled`, an exception or because the caller stops
        iterating, stays as partial; if it has no text yet, the message is withdrawn with it.
        SystemExit withdraws nothing: whoever resumes the saved conversation finds the message.

        Parameters
        ----------
        text : str
            The message.
        replaced : int
            Turns at the end whose place it takes; they return if it is withdrawn.
        on_prefill, cancelled : callable, optional
            As for `tinychat.generate.prefill.prefill`.

        Raises
        ------
        ContextError, TextError
            As for `say`.
        SettingError
            If there are not that many turns to replace.
        """
        before = self.messages
        if replaced:
            self.message_of(replaced)
        kept = len(before) - 2 * replaced
        content = "\n\n".join([*(attachment.content for attachment in self.attachments), text])
        try:
            yield from self._answer([*before[:kept], Message("user", content)], kept, on_prefill, cancelled)
        finally:
            if self.messages is not before:
                self.attachments = []

    def regenerate(
        self,
        *,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Iterator[Piece]:
        """Answer the last message again; the old reply returns if the new one has no text.

        Raises
        ------
        SettingError
            If there is no message to answer.
        """
        if not self.messages:
            raise SettingError("there is no reply yet that could be written again: send a message first")
        asked = self.messages[:-1]
        yield from self._answer(asked, len(asked), on_prefill, cancelled)

    def message_of(self, turns: int) -> str:
        """Return the message that the last `turns` turns begin with.

        Raises
        ------
        SettingError
            If there are not that many.
        """
        there = len(self.messages) // 2
        if not there:
            raise SettingError("there is no message yet: the conversation is empty")
        if not 1 <= turns <= there:
            raise SettingError(f"there are not {turns} turns: give a number from 1 to {there}")
        return self.messages[-2 * turns].content

    def undo(self, steps: int = 1) -> str:
        """Take back the last changes, each a turn, a reply that was written again, or a message that replaced others.

        Returns
        -------
        str
            The first message that is gone, or whose reply is another.

        Raises
        ------
        SettingError
            If there are not that many to take back.
        """
        if not self.history.past:
            raise SettingError("there is nothing to take back: the conversation is empty")
        before = self.messages
        first = self._walk(self.history.past, steps, History.undone, "taken")
        return before[first].content

    def redo(self, steps: int = 1) -> str:
        """Make the changes again that `undo` took back, as long as nothing else was said since.

        Returns
        -------
        str
            The first message that is back, or whose reply is another.

        Raises
        ------
        SettingError
            If there are not that many.
        """
        if not self.history.future:
            raise SettingError("there is nothing to bring back: only what was taken back last, before anything new")
        first = self._walk(self.history.future, steps, History.redone, "brought")
        return self.messages[first].content

    def _walk(
        self,
        changes: Sequence[Change],
        steps: int,
        step: Callable[[History, list[Message]], tuple[list[Message], History]],
        verb: str,
    ) -> int:
        """Go `steps` steps through the history; return where the first message is whose turn is another now."""
        if not 1 <= steps <= len(changes):
            raise SettingError(f"{steps} steps cannot be {verb} back: give a number from 1 to {len(changes)}")
        first = min(change.kept for change in changes[-steps:])
        messages, history = self.messages, self.history
        for _ in range(steps):
            messages, history = step(history, messages)
        self.replace_messages(messages, history, self.forgotten)
        return first - first % 2

    def clear(self) -> None:
        """Forget all messages, their history and what was to go with the next one; keep the system prompt.

        The model's cache stays as it is: the next prompt rewinds it to what both begin with.
        """
        self.attachments = []
        self.replace_messages([])

    def seed(self) -> None:
        """Let the next reply use the seed of `sampling` itself, and later ones those after it."""
        self._seeded_since = self._replies

    @contextmanager
    def sampling_otherwise(self, sampling: SamplingSettings) -> Iterator[None]:
        """Use another sampling within a block: its seed, where it has one of its own, as it is."""
        usual, since = self.sampling, self._seeded_since
        self.sampling = sampling
        if sampling.seed != usual.seed:
            self.seed()
        try:
            yield
        finally:
            self.sampling, self._seeded_since = usual, since

    def replace_messages(self, messages: list[Message], history: History | None = None, forgotten: int = 0) -> None:
        """Go on from `messages`, whose history is turn after turn unless given, and hide the first `forgotten`."""
        self.messages = messages
        self.history = History.of_turns(messages) if history is None else history
        self.forgotten = min(forgotten, len(messages))
        self.reply_ids = []
        self.on_change()

    def rendered_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids that ask the model to answer `messages`, the system prompt before them."""
        spoken = [{"role": message.role, "content": message.content} for message in messages]
        standing = [{"role": "system", "content": self.system}] if self.system else []
        return self.model.render_ids(standing + spoken)

    def _answer(
        self,
        messages: list[Message],
        kept: int,
        on_prefill: PrefillProgress | None,
        cancelled: Callable[[], bool] | None,
    ) -> Iterator[Piece]:
        """Write the reply to `messages`, whose first `kept` are those of the conversation."""
        before, history_before, forgotten_before = self.messages, self.history, self.forgotten
        self.forgotten = min(self.forgotten, len(messages) - 1)
        try:
            run = self.model.stream(
                self._fitting_ids(messages),
                max_tokens=self.max_tokens,
                # A model without chat template ends its turn in words, not by a token.
                stop=(*self.stop, *self.model.template.stop_strings),
                on_prefill=on_prefill,
                cancelled=cancelled,
                joins_prompt=False,
                make_room=partial(self._make_room, messages, cancelled),
                **self._next_sampling(),
            )
        except BaseException:
            self.forgotten = forgotten_before
            raise
        reply = Message("assistant", "", partial=True)
        self.messages, self.history = [*messages, reply], self.history.changed(before, kept)
        self.writing, ending = True, False
        self.on_change()
        try:
            for piece in run:
                reply.content += piece.text
                self.on_change()
                yield piece
            reply.partial = run.summary.finish_reason == "interrupted"
        except SystemExit:
            ending = True
            raise
        finally:
            self.writing = False
            if reply.partial and not reply.content and not ending:
                self.messages, self.history, self.forgotten = before, history_before, forgotten_before
            else:
                self._replies += 1
                self.reply_ids = run.token_ids
            self.on_change()

    def _fitting_ids(self, messages: list[Message]) -> list[int]:
        """Return the ids of what is not forgotten, after forgetting what no longer fits."""
        ids = self.rendered_ids(messages[self.forgotten :])
        if self.overflow != "stop" and begins_full(len(ids), self.model.context_size):
            return self._forget(messages, ids, ())
        return ids

    def _make_room(
        self, messages: list[Message], cancelled: Callable[[], bool] | None, reply_ids: Sequence[int]
    ) -> bool:
        """Forget in the middle of a reply: see `tinychat.generate.loop.MakeRoom`."""
        if self.overflow == "stop":
            return False
        written, forgotten = reply_ids[:-1], self.forgotten
        ids = [*self.rendered_ids(messages[forgotten:]), *written]
        ids = self._forget(messages, ids, written)
        if self.forgotten == forgotten:
            return False
        logits, _ = prefill(self.model.engine, ids, cancelled=cancelled)
        return logits is not None

    def _forget(self, messages: list[Message], ids: list[int], written: Sequence[int]) -> list[int]:
        """Leave the oldest turns out of `ids`, which end with the `written` part of a reply, and say so."""

        def render(first: int) -> list[int]:
            return [*self.rendered_ids(messages[first:]), *written]

        size, first = self.model.context_size, self.forgotten
        self.forgotten, shorter = forget_oldest(render, first, len(messages) - 1, size)
        if self.forgotten > first:
            if self.overflow == "shift":
                shift_cache(self.model.engine, shorter, len(ids) - len(shorter))
            self.on_notice(forgetting_notice(messages[first : self.forgotten], len(shorter), size))
        return shorter

    def _next_sampling(self) -> SamplingOptions:
        settings = self.sampling
        if settings.seed is not None:
            settings = replace(settings, seed=settings.seed + self._replies - self._seeded_since)
        return cast(SamplingOptions, asdict(settings))
