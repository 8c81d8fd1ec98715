"""Compaction: the model's own summary replaces the oldest turns of a conversation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Unpack

from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import SUMMARY_REQUEST, Message, exchanges
from tinychat.conversation.overflow import begins_full, dropped_notice
from tinychat.errors import ContextError, SettingError, TextError
from tinychat.text.think_sections import ThinkSections

if TYPE_CHECKING:
    from tinychat.conversation.state import ChatState, ReplyHooks
    from tinychat.generate.prompt import Prompt
    from tinychat.generate.sequence import Ids

# A summary that has not ended by then goes round in circles.
_MOST_TOKENS = 1024
# The share of a full context for turns that stay as they are; a quarter is for the summary.
_STAYING = 0.5


class Compaction:
    """Asks the model for summaries, each as far as the context holds.

    A summary is an exchange like any other, a request and its reply, so that every chat template takes it, and every
    version of the program reads it in a saved conversation.
    """

    def __init__(self, chat: ChatState, **hooks: Unpack[ReplyHooks]) -> None:
        self._chat, self._hooks = chat, hooks
        self._room = min(_MOST_TOKENS, chat.model.context_size // 4)

    def compacted(self, messages: Sequence[Message], first: int) -> list[Message] | None:
        """Return `messages` with a summary of those before index `first`; None if it was stopped.

        Where they do not fit into the context together, a summary of the oldest is read with those that follow.
        `SettingError` if a turn alone is too long, or the summary is empty, does not end, or is no shorter than the
        turns.
        """
        begun: list[Message] = []
        left = list(messages[:first])
        while left:
            count = self._fitting(begun, left)
            text = self._summary([*begun, *left[:count]])
            if text is None:
                return None
            begun, left = [Message("user", SUMMARY_REQUEST), Message("assistant", text)], left[count:]
        shorter = [*begun, *messages[first:]]
        before, after = (len(self._prompt(each).ids) for each in (messages, shorter))
        if after >= before:
            raise SettingError(f"the model's summary is no shorter than the turns: {after} tokens instead of {before}")
        return shorter

    def _fitting(self, begun: Sequence[Message], left: Sequence[Message]) -> int:
        """Return how many of the messages `left` can be read with the summary that has `begun`."""
        size = self._chat.model.context_size
        ends = [*exchanges(left)[1:], len(left)]
        count = bisect_left(
            ends, True, key=lambda end: len(self._asking([*begun, *left[:end]]).ids) + self._room > size
        )
        if not count:
            turn = shorten(left[0].shown, 40, placeholder="...")
            raise SettingError(f'the turn "{turn}" is too long to be summarised in a context of {size} tokens')
        return ends[count - 1]

    def _summary(self, messages: Sequence[Message]) -> str | None:
        """Return the model's summary of `messages`; None if it was stopped."""
        chat = self._chat
        prompt = self._asking(messages)
        # Thoughts are no part of a summary; those of a model that cannot do without are ended for it.
        request = replace(
            chat.next_request(),
            max_tokens=self._room,
            stop=(),
            think_budget=0,
            logprobs=None,
            ignore_eos=False,
            constraint=None,
        )
        run = chat.aside(prompt, request, **self._hooks)
        sections, written = ThinkSections(prompt.opens_thinking), ""
        for delta in run:
            written += "".join(part.text for part in sections.feed(delta.text) if not part.thinking)
            chat.on_summarising(len(written))
        written += "".join(part.text for part in sections.finish() if not part.thinking)
        ended, text = run.summary.finish_reason, written.strip()
        if ended == "interrupted":
            return None
        if ended not in ("stop", "stop_string"):
            raise SettingError(f"the model's summary does not end within {self._room} tokens")
        if not text:
            raise SettingError("the model's summary is empty")
        return text

    def _asking(self, messages: Sequence[Message]) -> Prompt:
        return self._prompt([*messages, Message("user", SUMMARY_REQUEST)])

    def _prompt(self, messages: Sequence[Message]) -> Prompt:
        chat = self._chat
        seen = [replace(message, shortened=None).as_seen(chat.model.sees_images) for message in messages]
        # With the tools' text, too, which is cached.
        tools = chat.tool_definitions
        return chat.model.chat_prompt(seen, chat.system, thinking=False, tools=tools)


def with_summary(
    chat: ChatState, messages: list[Message], history: History, written: Ids, compaction: Compaction
) -> tuple[list[Message], History] | None:
    """Return messages to be answered, with a summary of the oldest where the context is full, and their history.

    The summary becomes a step before the last change of `history`. They are returned as given if there is room, or if
    the oldest cannot be summarised: then a notice says so, and they are left to be dropped. None if it was stopped.
    """
    size = chat.model.context_size

    def needed(first: int) -> int:
        return len(chat.prompt(messages[first:]).ids) + len(written)

    later = exchanges(messages)[1:]
    if not later or not begins_full(needed(chat.dropped), size):
        return messages, history
    stays = bisect_left(later, True, key=lambda begin: needed(begin) <= _STAYING * size)
    first = later[min(stays, len(later) - 1)]
    if begins_full(needed(first), size) or not history.past or history.past[-1].shared < first:
        return messages, history
    try:
        shorter = compaction.compacted(messages, first)
        if shorter is None:
            return None
        used = len(chat.prompt(shorter).ids) + len(written)
        if begins_full(used, size):
            raise SettingError("the model's summary leaves too little room")
    except (ContextError, SettingError, TextError) as error:
        chat.on_notice(f"{error}: the oldest turns are dropped instead")
        return messages, history
    chat.on_notice(dropped_notice(messages[:first], used, size, "a summary by the model replaces"))
    return shorter, _with_step(history, messages, len(messages) - len(shorter))


def _with_step(history: History, messages: Sequence[Message], fewer: int) -> History:
    """Return `history`, whose last change made `messages`, with a summary before it that took `fewer` messages."""
    *past, change = history.past
    before = (*messages[: change.shared], *change.tail)
    return History((*past, Change(0, before), replace(change, shared=change.shared - fewer)), history.future)
