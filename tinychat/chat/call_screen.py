"""Calls of tools on the screen: the question for consent, the line of a result, the whole of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from textwrap import indent, shorten

from tinychat.chat.draft import Draft
from tinychat.chat.interrupt_flag import plain_interrupts
from tinychat.conversation.chat_tools import CallResult
from tinychat.conversation.messages import Message
from tinychat.json_file import object_of
from tinychat.terminal.line_input import InputPrompt
from tinychat.terminal.rendering import Renderer
from tinychat.terminal.safe_text import escaped_text
from tinychat.tools.consent import ConsentAnswer, Decision, Question
from tinychat.tools.definitions import ToolCall

_KEYS = {"y": Decision.ONCE, "a": Decision.EXACTLY, "t": Decision.TOOL_IN_FOLDER, "n": Decision.NO, "": Decision.NO}
_REASON = "r"
_LONGEST_LINE = 100
_KIB = 1024


class CallScreen:
    """Shows the calls of a chat, and asks its user about them.

    `read` returns what is typed at a prompt, `prefill` begins the next prompt for a message.
    """

    def __init__(
        self, renderer: Renderer, read: Callable[[InputPrompt], str], prefill: Callable[[Draft], None]
    ) -> None:
        self._renderer, self._read_prompt, self._prefill = renderer, read, prefill

    def ask(self, question: Question) -> ConsentAnswer:
        """Show a call and return the user's decision; Ctrl-C and Ctrl-D raise KeyboardInterrupt, which ends the turn.

        Only keys that are pressed after the question is shown count. A text that is no answer waits for the next
        prompt.
        """
        self._renderer.end_reply()
        for line in _described(question):
            self._renderer.notice(line)
        with plain_interrupts():
            try:
                return self._answer(question)
            except (KeyboardInterrupt, EOFError):
                self._renderer.notice("stopped: the call does not run; /regen lets the model go on")
                raise KeyboardInterrupt from None

    def _answer(self, question: Question) -> ConsentAnswer:
        keys = {key: decision for key, decision in _KEYS.items() if decision in question.decisions}
        mark = f"{'/'.join([*filter(None, keys), _REASON])}> "
        while True:
            typed = self._read(mark)
            answer = typed.strip()
            if answer.lower() in keys:
                return ConsentAnswer(keys[answer.lower()])
            key, _, reason = answer.partition(" ")
            if key.lower() == _REASON:
                return ConsentAnswer(Decision.NO, reason.strip() or self._read("reason> ").strip())
            self._prefill(Draft(typed))
            self._renderer.notice("that is no answer, and waits for the next prompt")

    def _read(self, mark: str) -> str:
        return self._read_prompt(InputPrompt(question=mark, is_fresh=True))

    def begin(self, call: ToolCall) -> None:
        """Show that a call runs."""
        self._renderer.end_reply()
        self._renderer.tool_progress(call.name)

    def end(self, found: CallResult) -> None:
        """Show a call and its result as one line."""
        self._renderer.end_reply()
        self._renderer.aside(folded(found))


def folded(found: CallResult) -> str:
    """Return the line of a call: its beginning, time, and size or failure of the result."""
    result, text = found.result, escaped_text(" ".join(found.result.text.split()))
    parts = [shorten(escaped_text(spelled(found.call)), _LONGEST_LINE, placeholder="...")]
    if found.seconds is not None:
        parts.append(_duration(found.seconds))
    failure = "failed" if found.seconds is not None else "did not run"
    shown = f"{failure}: {shorten(text, _LONGEST_LINE, placeholder='...')}"
    parts.append(shown if result.is_error else _size(result.text))
    return " · ".join(parts)


def unfolded(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the calls among messages, each whole and with its whole result."""
    calls: dict[str | None, ToolCall] = {}
    for message in messages:
        calls |= {call.id: call for call in message.tool_calls}
        if message.role == "tool" and message.tool_call_id in calls:
            yield escaped_text(spelled(calls[message.tool_call_id]))
            yield indent(escaped_text(message.content), "  ")


def spelled(call: ToolCall) -> str:
    """Return a call as it is shown: name(key=value); arguments that are no object as the model has written them."""
    arguments = object_of(call.arguments)
    return f"{call.name}({call.arguments if arguments is None else _arguments(arguments)})"


def _arguments(arguments: dict[str, object]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())


def _described(question: Question) -> Iterator[str]:
    name = question.tool.name
    yield f"the model asks for {escaped_text(f'{name}({_arguments(question.arguments)})')}"
    if question.preview:
        yield indent(escaped_text(question.preview), "  ")
    if question.has_changed:
        yield f"the description of {name} has changed since you allowed it"
    answers = {
        Decision.ONCE: "y once",
        Decision.EXACTLY: "a always exactly this",
        Decision.TOOL_IN_FOLDER: f"t always {name} in {escaped_text(str(question.folder))}",
        Decision.NO: "n no",
    }
    offered = [answers[decision] for decision in question.decisions]
    yield f"run it? {', '.join(offered)}, {_REASON} no, with a reason for the model"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _size(text: str) -> str:
    size = len(text.encode("utf-8", "replace"))
    shown = f"{size} bytes" if size < _KIB else f"{size / _KIB:.1f} KiB"
    lines = len(text.splitlines())
    return f"{lines} lines, {shown}" if lines > 1 else shown
