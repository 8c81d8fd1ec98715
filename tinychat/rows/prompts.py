"""The prompts of rows, made together: template and tokenizer take less time for many than for one after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from tinychat.errors import ContextError, SettingError, TextError, TinychatError
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.worker_threads import made_ahead

if TYPE_CHECKING:
    from tinychat.generate.batched import Asked
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Reply

Conversation = Sequence[Mapping[str, object]]
"""Messages with `role` and `content`."""
RowError = ContextError | SettingError | TextError
ROW_ERRORS = (ContextError, SettingError, TextError)
"""Errors of one row, which do not end the others."""
RowRequest = tuple[str | Conversation | Prompt, Request]
"""The question of a row: a text, messages or a prompt that is made already; and its settings."""
AHEAD = 32
"""Prompts to make before a reply can begin: templates and tokenizers run in a process and threads of their own."""
TOGETHER = 16
"""Of these so many together: a call of the process takes as long as the rendering of several."""


@dataclass(frozen=True)
class RowPrompts:
    """Makes the prompts of rows for one model; parameters are those of `Model.text_prompt`.

    `system` is put before texts only: a conversation has its own.
    """

    model: Model
    system: str | None = None
    as_chat: bool | None = None
    thinking: bool | None = None

    def messages(self, text: str) -> Conversation:
        """Return a text as a conversation."""
        standing = [{"role": "system", "content": self.system}] if self.system else []
        return [*standing, {"role": "user", "content": text}]

    def requests(self, rows: Iterable[RowRequest | RowError]) -> list[tuple[Prompt, Request] | TinychatError]:
        """Return prompt and request of each row, or its error; all prompts that are not made yet are made together."""
        rows = [*rows]
        asked = [row[0] for row in rows if isinstance(row, tuple) and not isinstance(row[0], Prompt)]
        made = iter(self._of_many(asked))
        found: list[tuple[Prompt, Request] | TinychatError] = []
        for row in rows:
            if isinstance(row, tuple):
                prompt = row[0] if isinstance(row[0], Prompt) else next(made)
                found.append((prompt, row[1]) if isinstance(prompt, Prompt) else prompt)
            else:
                found.append(row)
        return found

    def _of_many(self, asked: Sequence[str | Conversation]) -> list[Prompt | RowError]:
        """Return the prompts of texts and conversations without tools, or their errors."""
        is_message = self.model.takes_message(self.system, self.as_chat)
        found = [(self.messages(each) if is_message else None) if isinstance(each, str) else each for each in asked]
        template, thinking = self.model.template, self.thinking
        conversations = [messages for messages in found if messages is not None]
        many = self.model.tool_template.render_ids_of_many(conversations, **template.thinking_variables(thinking))
        coming, opens = iter(many), self.model.opens_thinking(thinking)
        prompts: list[Prompt | RowError] = []
        for each, messages in zip(asked, found):
            if messages is None or (ids := next(coming)) is None:
                prompts.append(self._alone(each, messages))
            else:
                prompts.append(Prompt(ids, False, template.stop_strings, opens))
        return prompts

    def _alone(self, asked: str | Conversation, messages: Conversation | None) -> Prompt | RowError:
        """Return the prompt of a text to continue, or of a conversation that has an error among others."""
        try:
            if messages is not None:
                return self.model.chat_prompt(messages, thinking=self.thinking)
            return self.model.text_prompt(str(asked), as_chat=False)
        except ROW_ERRORS as error:
            return error


def answered(
    model: Model, groups: Iterable[Iterable[Asked]], parallel: int | None, ahead: int
) -> Generator[list[tuple[int, Reply | RowError]], None, None]:
    """Yield the replies to groups of prompts that end together, each with its number, or its row's error.

    A thread makes up to `ahead` groups while others are answered. Any other error is raised.
    """
    # Imported here: it needs numpy, which the program that sends the rows does without.
    from tinychat.generate.batched import whole_replies

    runs = ([model.run_or_error(each) for each in group] for group in groups)
    with closing(made_ahead(runs, ahead)) as coming:
        for together in whole_replies(model.driver, chain.from_iterable(coming), parallel):
            yield [(number, _of_row(got)) for number, got in together]


def _of_row(got: Reply | TinychatError) -> Reply | RowError:
    """Return a reply or its row's error; raise any other."""
    if isinstance(got, TinychatError) and not isinstance(got, ROW_ERRORS):
        raise got
    return got
