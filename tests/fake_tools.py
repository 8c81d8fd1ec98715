"""Tools whose results a test prepares, and replies that call them in the format of Hermes."""

import json
from pathlib import Path

from tinychat.tools.consent import Consent, ConsentAnswer, ConsentStore, Decision
from tinychat.tools.definitions import Tool
from tinychat.tools.runnable import ToolResult

ONCE = ConsentAnswer(Decision.ONCE)


class FakeTool:
    """Returns what `run` does with the arguments, a text or a ToolResult; `ran` keeps them."""

    def __init__(self, name, run=lambda arguments, stop: "done", writes=False, exact_only=False, preview=None, **types):
        properties = {key: {"type": kind} for key, kind in types.items()}
        schema = {"type": "object", "properties": properties, "required": [*types], "additionalProperties": False}
        self.definition = Tool(name, f"The tool {name}.", schema)
        self.writes, self.exact_only, self.ran = writes, exact_only, []
        self._run, self._preview = run, preview

    def preview(self, arguments):
        return self._preview

    def run(self, arguments, stop):
        self.ran.append(arguments)
        result = self._run(arguments, stop)
        return result if isinstance(result, ToolResult) else ToolResult(result)


def call(name, **arguments):
    """Return the text of a call, as a model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def asking(answers, questions=None, folder="."):
    """Return a consent that gives the answers in turn, or raises those that are exceptions; it keeps the questions."""
    left = list(answers)

    def ask(question):
        if questions is not None:
            questions.append(question)
        answer = left.pop(0)
        if isinstance(answer, type):
            raise answer
        return answer

    return Consent(ConsentStore(None), Path(folder), ask)
