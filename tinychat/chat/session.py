"""A conversation with a model: messages in memory, no input and no output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Unpack, cast

from tinychat.errors import SettingError
from tinychat.generate.loop import Piece
from tinychat.generate.model import Model
from tinychat.generate.prefill import PrefillProgress
from tinychat.generate.settings import SamplingOptions, SamplingSettings
from tinychat.generate.stopping import as_strings


@dataclass
class Message:
    """One message of the conversation.

    Attributes
    ----------
    role : str
        "user" or "assistant".
    content : str
        The text.
    partial : bool
        True while a reply is being written, and for good when it was stopped.
    """

    role: str
    content: str
    partial: bool = False


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
    **sampling
        Fields of `SamplingSettings`. With a seed the conversation can be repeated; the seed grows
        by one with each reply, so that regenerating gives another text.

    Attributes
    ----------
    messages : list of Message
        User and assistant in turn; a stopped reply stays, marked as partial. Every change puts
        a new list here, so an earlier one still shows the conversation as it was.

    Raises
    ------
    SettingError
        If a sampling setting is out of range.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> None:
        self.model = model
        self.system = system
        self.messages: list[Message] = []
        self.sampling = SamplingSettings(**sampling)
        self._max_tokens = max_tokens
        # A model without chat template ends its turn in words, not by a token.
        self._stop = (*as_strings(stop), *model.template.stop_strings)
        self._replies = 0

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
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Iterator[Piece]:
        """Send a message and yield the reply piece by piece.

        A reply that ends early, by `cancelled`, an exception or because the caller stops
        iterating, stays as partial; if it has no text yet, the message is withdrawn with it.

        Raises
        ------
        ContextError, TextError
            As for `say`.
        """
        yield from self._answer([*self.messages, Message("user", text)], on_prefill, cancelled)

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
        yield from self._answer(self.messages[:-1], on_prefill, cancelled)

    def undo(self) -> str:
        """Take back the last message and its reply, and return the message's text.

        Raises
        ------
        SettingError
            If there is nothing to take back.
        """
        if not self.messages:
            raise SettingError("there is nothing to take back: the conversation is empty")
        message = self.messages[-2]
        self.messages = self.messages[:-2]
        return message.content

    def clear(self) -> None:
        """Forget all messages; the system prompt stays."""
        self.messages = []

    def rendered_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids that ask the model to answer `messages`, the system prompt before them."""
        spoken = [{"role": message.role, "content": message.content} for message in messages]
        standing = [{"role": "system", "content": self.system}] if self.system else []
        return self.model.render_ids(standing + spoken)

    def _answer(
        self,
        messages: list[Message],
        on_prefill: PrefillProgress | None,
        cancelled: Callable[[], bool] | None,
    ) -> Iterator[Piece]:
        before = self.messages
        sampling = self._next_sampling()
        run = self.model.stream(
            self.rendered_ids(messages),
            max_tokens=self._max_tokens,
            stop=self._stop,
            on_prefill=on_prefill,
            cancelled=cancelled,
            joins_prompt=False,
            **sampling,
        )
        reply = Message("assistant", "", partial=True)
        self.messages = [*messages, reply]
        try:
            for piece in run:
                reply.content += piece.text
                yield piece
            reply.partial = run.summary.finish_reason == "interrupted"
        finally:
            if reply.partial and not reply.content:
                self.messages = before
            else:
                self._replies += 1

    def _next_sampling(self) -> SamplingOptions:
        settings = self.sampling
        if settings.seed is not None:
            settings = replace(settings, seed=settings.seed + self._replies)
        return cast(SamplingOptions, asdict(settings))
