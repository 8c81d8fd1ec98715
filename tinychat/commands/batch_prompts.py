"""The prompt of a line of a batch file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinychat.commands.batch_tasks import Task
from tinychat.generate.prompt import Prompt

if TYPE_CHECKING:
    from tinychat.generate.model import Model


def task_prompt(model: Model, task: Task, system: str | None, as_chat: bool | None, thinking: bool | None) -> Prompt:
    """Return the prompt of a task: its text, or its conversation in the chat template.

    `system`, `as_chat` and `thinking` are those of `Model.text_prompt`, for a prompt that is a text. `TextError` if the
    template refuses the conversation.
    """
    tools = [tool.as_dict() for tool in task.tools.tools]
    if not isinstance(task.prompt, str):
        return model.chat_prompt(task.prompt, thinking=thinking, tools=tools)
    if tools:
        return model.chat_prompt([{"role": "user", "content": task.prompt}], system, thinking, tools)
    if task.url is not None:
        return model.text_prompt(task.prompt, as_chat=False)
    return model.text_prompt(task.prompt, system, as_chat, thinking)
