"""The prompts and requests of the tasks of a batch, and its run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from tinychat.commands.batch_results import Outcome, Results
from tinychat.commands.batch_tasks import Task
from tinychat.errors import ContextError, FieldError, SettingError, TextError, TinychatError
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.worker_threads import made_ahead

if TYPE_CHECKING:
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.generate.grammar import Constraint
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Reply

# Errors of one row, which do not end the batch.
ROW_ERRORS = (ContextError, SettingError, TextError)
# Compiled schemas in the cache.
_SCHEMAS = 8
# Prompts that are made before a reply can begin: templates and tokenizers run in a process and threads of their own.
_AHEAD = 32
# Of these so many together: a call of the process takes as long as the rendering of several.
TOGETHER = 16


@dataclass
class BatchAnswers:
    """The answers of one model to tasks."""

    model: Model
    system: str | None
    as_chat: bool | None
    thinking: bool | None
    constraint: Constraint | None

    def __post_init__(self) -> None:
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
        """Answer the tasks, several at once, and write the results in their order; yields after each of them.

        The prompts of `at_once` tasks are made together: 1 where tasks come one by one, and none may wait for the next.
        `seen` is called with each task before it is answered, in a thread that makes prompts while others are answered.
        """
        from tinychat.generate.reply import Delta

        asked: dict[int, Task] = {}
        ready: dict[int, Outcome] = {}

        def requests() -> Generator[tuple[Prompt, Request] | TinychatError, None, None]:
            coming = enumerate(tasks)
            while group := dict(islice(coming, at_once)):
                for task in group.values():
                    seen(task)
                asked.update(group)
                yield from self.requests([*group.values()])

        written = 0
        with closing(made_ahead(requests(), _AHEAD)) as prompts:
            for number, got in self.model.write_many(prompts, parallel):
                if isinstance(got, Delta):
                    continue
                if isinstance(got, TinychatError) and not isinstance(got, ROW_ERRORS):
                    raise got
                task = asked.pop(number)
                ready[number] = results.outcome(task, self.model.name, got, self.calls(task, got))
                while written in ready:
                    results.add(ready.pop(written))
                    written += 1
                yield

    def is_conversation(self, task: Task) -> bool:
        """Return whether the task uses the chat template."""
        if not isinstance(task.prompt, str) or task.tools.tools:
            return True
        return task.url is None and self.model.takes_message(self.system, self.as_chat)

    def requests(self, tasks: Sequence[Task]) -> list[tuple[Prompt, Request] | TinychatError]:
        """Return prompt and request of each task, or the error of its row."""
        found = {id(task): messages for task in tasks if (messages := self._conversation(task)) is not None}
        prompts = dict(zip(found, self._chat_prompts([*found.values()])))
        return [self._request(task, prompts.get(id(task))) for task in tasks]

    def _chat_prompts(self, conversations: Sequence[Sequence[Mapping[str, object]]]) -> list[Prompt | None]:
        """Return the prompts of many conversations without tools, in less time than `Model.chat_prompt` takes for each.

        None for one that has an error, which `chat_prompt` raises.
        """
        template, thinking = self.model.template, self.thinking
        found = self.model.tool_template.render_ids_of_many(conversations, **template.thinking_variables(thinking))
        opens, ends = self.model.opens_thinking(thinking), template.stop_strings
        return [None if ids is None else Prompt(ids, False, ends, opens) for ids in found]

    def _request(self, task: Task, prompt: Prompt | None) -> tuple[Prompt, Request] | TinychatError:
        if task.error is not None:
            return SettingError(task.error)
        try:
            constraint = self._constraint(task)
            request = task.request if constraint is None else replace(task.request, constraint=constraint)
            return prompt or self._prompt(task), request
        except ROW_ERRORS as error:
            return error

    def _conversation(self, task: Task) -> list[dict[str, object]] | None:
        """Return the messages of a task whose prompt can be made beside others; None of one with tools or an error."""
        if task.error is not None or task.tools.tools or not self.is_conversation(task):
            return None
        if not isinstance(task.prompt, str):
            return task.prompt
        standing: list[dict[str, object]] = [{"role": "system", "content": self.system}] if self.system else []
        return [*standing, {"role": "user", "content": task.prompt}]

    def calls(self, task: Task, result: Reply | TinychatError) -> ReplyCalls | None:
        """Return the calls of the reply to a task; None if it has no tools, or failed."""
        from tinychat.conversation.call_rules import CallRules
        from tinychat.generate.reply import Reply

        if not task.tools.tools or not isinstance(result, Reply):
            return None
        return CallRules(self.model, task.tools).of_whole_reply(result, f"{task.id}-")

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

    def _prompt(self, task: Task) -> Prompt:
        tools = [tool.as_dict() for tool in task.tools.tools]
        if not isinstance(task.prompt, str):
            return self.model.chat_prompt(task.prompt, thinking=self.thinking, tools=tools)
        if tools:
            question = {"role": "user", "content": task.prompt}
            return self.model.chat_prompt([question], self.system, self.thinking, tools)
        if task.url is not None:
            return self.model.text_prompt(task.prompt, as_chat=False)
        return self.model.text_prompt(task.prompt, self.system, self.as_chat, self.thinking)
