"""The prompts and requests of the tasks of a batch, and its run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from tinychat.commands.batch_results import Outcome, Results
from tinychat.commands.batch_tasks import Task
from tinychat.errors import FieldError, SettingError, TinychatError
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.rows.prompts import AHEAD, ROW_ERRORS, RowError, RowPrompts, RowRequest, answered

if TYPE_CHECKING:
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.generate.grammar import Constraint
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Reply

# Compiled schemas in the cache.
_SCHEMAS = 8


@dataclass
class BatchAnswers:
    """The answers of one model to tasks."""

    prompts: RowPrompts
    constraint: Constraint | None

    def __post_init__(self) -> None:
        self.model: Model = self.prompts.model
        # Many tasks share a schema.
        self._compiled = lru_cache(_SCHEMAS)(self._compile)

    def write(
        self,
        tasks: Iterable[Task],
        results: Results,
        parallel: int | None,
        seen: Callable[[Task], None],
        at_once: int = 1,
    ) -> Generator[None, None, None]:
        """Answer the tasks, several at once, and write the results in their order; yields after some of them.

        The prompts of `at_once` tasks are made together: 1 where tasks come one by one, and none may wait for the next.
        `seen` is called with each task before it is answered, in a thread that makes prompts while others are answered.
        """
        asked: dict[int, tuple[Task, str]] = {}
        ready: dict[int, Outcome] = {}

        def requests() -> Generator[list[tuple[Prompt, Request] | TinychatError], None, None]:
            coming = enumerate(tasks)
            while group := dict(islice(coming, at_once)):
                for number, task in group.items():
                    seen(task)
                    # Without its prompt, whose images take memory.
                    asked[number] = replace(task, prompt=""), results.digest(task)
                yield self.requests([*group.values()])

        written = 0
        with closing(answered(self.model, requests(), parallel, AHEAD // at_once)) as replies:
            for together in replies:
                for number, got in together:
                    task, digest = asked.pop(number)
                    ready[number] = results.outcome(task, digest, self.model.name, got, self.calls(task, got))
                due = []
                while written in ready:
                    due.append(ready.pop(written))
                    written += 1
                results.add(due)
                yield

    def is_conversation(self, task: Task) -> bool:
        """Return whether the task uses the chat template."""
        if not isinstance(task.prompt, str) or task.tools.tools:
            return True
        return task.url is None and self.model.takes_message(self.prompts.system, self.prompts.as_chat)

    def requests(self, tasks: Sequence[Task]) -> list[tuple[Prompt, Request] | TinychatError]:
        """Return prompt and request of each task, or the error of its row."""
        return self.prompts.requests(map(self._asked, tasks))

    def _asked(self, task: Task) -> RowRequest | RowError:
        if task.error is not None:
            return SettingError(task.error)
        try:
            constraint = self._constraint(task)
            request = task.request if constraint is None else replace(task.request, constraint=constraint)
            return self._special_prompt(task) or task.prompt, request
        except ROW_ERRORS as error:
            return error

    def calls(self, task: Task, result: Reply | TinychatError) -> ReplyCalls | None:
        """Return the calls of the reply to a task; None if it has no tools, or failed."""
        if not task.tools.tools or isinstance(result, TinychatError):
            return None
        from tinychat.conversation.reply_calls import ReplyCalls

        return ReplyCalls.of_reply(result, self.model.tool_template.form, task.tools.tools, f"{task.id}-")

    def _constraint(self, task: Task) -> Constraint | None:
        if task.tools.tools and self.constraint is not None:
            raise FieldError("tools", "cannot be given beside --schema or --grammar: leave one out")
        if task.tools.tools:
            return self.model.call_constraint(task.tools)
        return self.constraint if task.schema is None else self._compiled(task.schema)

    def _compile(self, schema: str) -> Constraint:
        # Imported here: it imports numpy.
        from tinychat.generate.grammar import Grammar

        return self.model.constraint(Grammar.from_schema(schema, "response_format"))

    def _special_prompt(self, task: Task) -> Prompt | None:
        """Return the prompt with tools, or of a text that OpenAI's form continues; None for any other."""
        if task.tools.tools:
            messages = self.prompts.messages(task.prompt) if isinstance(task.prompt, str) else task.prompt
            tools = [tool.as_dict() for tool in task.tools.tools]
            return self.model.chat_prompt(messages, thinking=self.prompts.thinking, tools=tools)
        if task.url is not None and isinstance(task.prompt, str):
            return self.model.text_prompt(task.prompt, as_chat=False)
        return None
