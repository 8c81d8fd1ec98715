"""The loop of a conversation with tools: reply, calls, consent, results, and on until the model answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from tinychat.conversation.chat_tools import CallResult
from tinychat.conversation.messages import Message, open_calls
from tinychat.errors import ToolError
from tinychat.tools.definitions import ToolCall
from tinychat.tools.runnable import ToolResult

if TYPE_CHECKING:
    from tinychat.conversation.state import ChatState
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Delta

STOPPED = "not run: stopped by the user"
# One in so many parts of the context is for the results of a round of calls.
_SHARE_OF_RESULTS = 4
_FEWEST_TOKENS = 32


class ToolRounds:
    """Runs the calls of one turn and has the model go on with their results.

    However it ends, by Ctrl-C too, every call has a result, and the conversation is valid. The last message of `chat`
    is the reply that may have calls. `cancelled` is asked while a tool runs: True stops the tool, and then the turn.
    Calls of the tools of `asked_again` are decided on by a person if they write something, whatever is remembered.
    """

    def __init__(
        self,
        chat: ChatState,
        cancelled: Callable[[], bool] | None,
        asked_again: Collection[str],
    ) -> None:
        self._chat, self._tools, self._asked_again = chat, chat.tools, asked_again
        self._stop = _StopEvent(cancelled)

    def follow(self, reply: Iterator[Delta], go_on: Callable[[], Iterator[Delta]]) -> Iterator[Delta]:
        """Yield a reply, and after each round of calls the reply that `go_on` begins."""
        reason, earlier = STOPPED, self._open_calls()
        try:
            yield from reply
            for _ in range(self._tools.max_rounds):
                if not self._open_calls():
                    return
                self._run_calls()
                if self._stop.is_set():
                    return
                yield from go_on()
            reason = f"not run: these were {self._tools.max_rounds} rounds of calls"
            if self._open_calls():
                self._chat.on_notice(f"these were {self._tools.max_rounds} rounds of calls, the most for one message")
        finally:
            for call in self._open_calls():
                if not any(call is one for one in earlier):
                    self._add(CallResult(call, ToolResult(reason, is_error=True), None))

    def _open_calls(self) -> list[ToolCall]:
        """Return the calls of the last reply that have no result yet."""
        return open_calls(self._chat.messages)

    def _run_calls(self) -> None:
        calls = self._open_calls()
        limit = _most_tokens(self._chat.model, len(calls))
        for call in calls:
            if self._stop.is_set():
                return
            self._add(self._result(call), limit)

    def _result(self, call: ToolCall) -> CallResult:
        toolbox, consent = self._tools.toolbox, self._tools.consent
        try:
            arguments = toolbox.check(call.name, call.arguments)
            tool = toolbox.find(call.name)
            preview = None if consent is None else toolbox.preview(call.name, arguments)
        except ToolError as error:
            return CallResult(call, ToolResult(str(error), is_error=True), None)
        if consent is not None:
            must_ask = tool.writes and call.name in self._asked_again
            answer = consent.decide(tool, arguments, preview, must_ask)
            if not answer.is_yes:
                return CallResult(call, ToolResult(answer.refusal, is_error=True), None)
        self._tools.on_call(call)
        begun = perf_counter()
        result = toolbox.run(call.name, arguments, self._stop)
        return CallResult(call, result, perf_counter() - begun)

    def _add(self, found: CallResult, limit: int | None = None) -> None:
        """Add the message of a result to the conversation, cut to `limit` tokens."""
        call, text = found.call, found.result.text
        if limit is not None:
            text = _cut(self._chat.model, text, limit)
        content = f"error: {text}" if found.result.is_error else text
        self._chat.add_result(result_message(call, content))
        self._tools.on_result(found)


def result_message(call: ToolCall, content: str) -> Message:
    """Return the message with the result of a call."""
    return Message("tool", content, tool_call_id=call.id, name=call.name)


class _StopEvent(threading.Event):
    """An event that is set once `cancelled` returns True: tools wait for it without knowing of Ctrl-C."""

    def __init__(self, cancelled: Callable[[], bool] | None) -> None:
        super().__init__()
        self._cancelled = cancelled

    def is_set(self) -> bool:
        """Return whether the turn is to stop."""
        if self._cancelled is not None and self._cancelled():
            self.set()
        return super().is_set()


def _most_tokens(model: Model, calls: int) -> int:
    """Return how many tokens of a result the model reads, so that those of a round leave room for the reply."""
    return max(model.context_size // (_SHARE_OF_RESULTS * max(calls, 1)), _FEWEST_TOKENS)


def _cut(model: Model, text: str, limit: int) -> str:
    """Return a text of about `limit` tokens, with a note for what is left out before its end."""
    ids = model.encode(text, add_bos=False)
    if len(ids) <= limit:
        return text
    end = limit // _SHARE_OF_RESULTS
    note = f"\n[{len(ids) - limit} tokens are left out here]\n"
    return model.decode(ids[: limit - end]) + note + model.decode(ids[len(ids) - end :])
