"""A conversation with a model: messages in memory, no input and no output."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from tinychat.conversation.attachments import Attachment, message_with
from tinychat.conversation.chat_tools import MOST_ROUNDS, ChatTools, as_toolbox
from tinychat.conversation.compaction import Compaction, with_summary
from tinychat.conversation.contents import SavedImage
from tinychat.conversation.history import History
from tinychat.conversation.messages import Message, check_conversation, exchanges, open_calls
from tinychat.conversation.reply_calls import ReplyCalls
from tinychat.conversation.reply_room import ReplyRoom
from tinychat.conversation.state import ChatState, ReplyHooks
from tinychat.conversation.tool_rounds import ToolRounds
from tinychat.errors import FieldError, SettingError
from tinychat.generate.model import Model
from tinychat.generate.prefix_miss import PrefixMiss
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, Summary, total
from tinychat.generate.request import RequestFields, as_request
from tinychat.generate.sequence import Ids
from tinychat.images.detail import HIGH
from tinychat.images.image import Image, image_of
from tinychat.settings import SETTINGS
from tinychat.text.parts import NO_IMAGES
from tinychat.text.think_sections import ends_in_thought

if TYPE_CHECKING:
    from tinychat.tools.consent import Consent
    from tinychat.tools.runnable import RunnableTool

_FOR_PROGRAMS = (
    "astream attachments clear close compact extend go_on history image_detail messages model overflow redo regenerate "
    "request say stream summary system thinking tokens_in_use tools undo"
).split()


class Chat(ChatState):
    """A conversation that remembers.

    The whole conversation is rendered for every reply; cached tokens of it
    are not computed again, so undoing and regenerating need no bookkeeping here.

    Parameters
    ----------
    model : Model
        Answers; other users of it only cost this conversation its cached prefix.
    system : str, optional
        Standing instruction, before all messages.
    overflow : {"stop", "drop", "shift", "summarise"}
        What happens when the context is full: see `OverflowPolicy`. The default, unlike that of the
        command line, loses no turn silently: the reply ends, and a message that no longer fits is refused.
    image_detail : {"high", "low"}
        Detail in which images of the next messages are seen; in the low one they take few tokens.
    tools : iterable of callable or RunnableTool
        What the model may call before it answers. The schema of a Python function comes from its type hints and
        docstring. A tool runs in a thread of its own.
    consent : Consent, optional
        Decides on each call; None runs them all.
    max_tool_rounds : int
        Rounds of calls that answer one message at most.
    **fields
        Fields of `Request`, such as `temperature`, `max_tokens` or `stop`. With a seed the conversation can be
        repeated; the seed grows by one with each reply, so that regenerating gives another text.

    Attributes
    ----------
    messages : list of Message
        See `Transcript` for these and their history, `RequestState` for `request`, `origins` and `thinking`.
    attachments : list of Attachment
        Texts and images that go with the next message.
    summary : Summary, optional
        Counts, times and end of the last reply that the present model began.
    miss : PrefixMiss or None
        Why less was cached for the last reply than the conversation had, where nobody changed what came before.
    """

    # A class that assigns to what it inherits names the types once more, as some type checkers ask for.
    messages: list[Message]
    history: History
    dropped: int
    reply_ids: list[int]

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        overflow: str = "stop",
        image_detail: str = HIGH,
        tools: Iterable[Callable[..., Any] | RunnableTool] = (),
        consent: Consent | None = None,
        max_tool_rounds: int = MOST_ROUNDS,
        **fields: Unpack[RequestFields],
    ) -> None:
        super().__init__(model, system, overflow, as_request(**fields))
        self.image_detail = str(SETTINGS["image_detail"].check(image_detail))
        self.tools = ChatTools(as_toolbox(tools), consent, max_tool_rounds)
        self.attachments: list[Attachment] = []
        self.summary: Summary | None = None
        # Those of all replies of the last turn.
        self._turn: list[Summary] = []
        self.writing: bool = False
        # Prompt and reply that the model read and wrote last; the messages then, and all else that a prompt is made of.
        self._seen_ids: list[int] = []
        self._seen: tuple[list[Message], object] = [], None
        self.miss: PrefixMiss | None = None

    def __repr__(self) -> str:
        return f"<Chat with {self.model.name}, {len(self.messages)} messages>"

    def __dir__(self) -> list[str]:
        # What programs call, for the Tab key; the terminal's chat uses more.
        return [*_FOR_PROGRAMS]

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def say(self, text: str, images: Iterable[object] = ()) -> str:
        """Send a message and return the whole reply; `images` are as for `stream`.

        Raises
        ------
        ContextError
            If the conversation no longer fits into the context; the message is withdrawn.
        TextError
            If the chat template refuses the conversation; the message is withdrawn.
        FieldError
            If an image cannot be read, or the model sees none.
        """
        return "".join(delta.text for delta in self.stream(text, images))

    def stream(
        self, text: str, images: Iterable[object] = (), *, replaced: int = 0, **hooks: Unpack[ReplyHooks]
    ) -> Generator[Delta, None, None]:
        """Send a message, attachments before it, and yield the reply.

        A reply that ends early, by `cancelled`, an exception or because the caller stops
        iterating, stays as partial; if it has no text yet, the message is withdrawn with it.
        SystemExit withdraws nothing: whoever resumes the saved conversation finds the message.

        Parameters
        ----------
        text : str
            The message.
        images : iterable of path, bytes, array or PIL.Image.Image
            Images before the text, for models that see: files, their bytes, or uint8 [height, width, 3].
        replaced : int
            Exchanges at the end that it replaces; they return if it is withdrawn.
        **hooks
            `on_prefill` and `cancelled`, as for `tinychat.generate.stream.Stream`.

        Raises
        ------
        ContextError, TextError, FieldError
            As for `say`.
        SettingError
            If there are not that many exchanges to replace, or a call of a tool has no result yet.
        """
        before = self.messages
        if replaced:
            self.message_of(replaced)
        shared = exchanges(before)[-replaced] if replaced else len(before)
        _check_answered(before[:shared])
        found = [one if isinstance(one, SavedImage) else self._seen_image(one) for one in images]
        message = message_with(self.attachments, found, text)
        if message.has_images and not self.model.sees_images:
            raise FieldError("images", NO_IMAGES)
        try:
            asked = [*before[:shared], message]
            reply = self._answer(asked, self.history.changed(before, shared), hooks)
            yield from self._with_calls(reply, hooks, before[shared:])
        finally:
            if self.messages is not before:
                self.attachments = []

    def extend(self, messages: Sequence[Message], **hooks: Unpack[ReplyHooks]) -> Iterator[Delta]:
        """Continue the last exchange: add messages, such as the results of tool calls, and yield the reply to them.

        They are withdrawn with a reply that has no text; `undo` takes back the whole exchange.

        Raises
        ------
        ContextError, TextError
            As for `say`.
        FieldError
            If they do not continue the last exchange.
        """
        if not self.messages:
            raise SettingError("there is no exchange yet that could go on: send a message first")
        asked = [*self.messages, *messages]
        check_conversation(asked, len(self.messages))
        if exchanges(messages):
            raise FieldError("messages", "must go on with the exchange: a user message begins another")
        _check_answered(asked)
        yield from self._with_calls(self._answer(asked, History(self.history.past), hooks), hooks)

    async def astream(self, text: str, images: Iterable[object] = ()) -> AsyncGenerator[Delta, None]:
        """Send a message, and yield the reply in an event loop: ``async for delta in chat.astream(...)``.

        A thread makes the steps of `stream`: summaries of a full context may come before the reply.
        """
        # Imported here: the command line starts faster without.
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        deltas, loop = self.stream(text, images), asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            try:
                while (delta := await loop.run_in_executor(thread, next, deltas, None)) is not None:
                    yield delta
            finally:
                # Behind a step that may still be running there.
                thread.submit(deltas.close)

    def regenerate(self, **hooks: Unpack[ReplyHooks]) -> Iterator[Delta]:
        """Answer the last message again; the old reply returns if the new one has no text.

        Calls before the reply are not repeated. If the new one calls a tool that has written something in this
        exchange, consent is asked for whatever is remembered.
        """
        if not self.messages:
            raise SettingError("there is no reply yet that could be written again: send a message first")
        if self.messages[-1].role == "assistant":
            asked = self.messages[:-1]
            reply = self._answer(asked, self.history.changed(self.messages, len(asked)), hooks)
            yield from self._with_calls(reply, hooks, self.messages[exchanges(asked)[-1] :])
        else:
            yield from self.extend((), **hooks)

    def go_on(self, **hooks: Unpack[ReplyHooks]) -> Iterator[Delta]:
        """Continue the last reply, which was stopped or cut, where its tokens end; `undo` leads back."""
        if not self.messages or not self.messages[-1].partial:
            raise SettingError("there is no stopped or cut reply to go on with: /regen writes the last one again")
        reply, asked = self.messages[-1], self.messages[:-1]
        ids = self.reply_ids or self.model.tokenizer.encode_reply(reply.content)
        history = self.history.changed(self.messages, len(asked))
        yield from self._with_calls(self._answer(asked, history, hooks, reply.content, ids), hooks)

    def compact(self, turns: int = 1, **hooks: Unpack[ReplyHooks]) -> str:
        """Let the model's own summary replace all but the last `turns` exchanges; `undo` brings them back.

        Returns
        -------
        str
            The summary; empty if `cancelled` has stopped it, which changes nothing.

        Raises
        ------
        SettingError
            If there are no others, one of them is too long, or the summary is empty, endless or no shorter than they.
        """
        begins = exchanges(self.messages)
        if turns < 1:
            raise FieldError("turns", f"must be 1 or more, not {turns}")
        if len(begins) <= turns:
            raise SettingError(f"there is nothing to summarise before the last {turns} of {len(begins)} turns")
        before, reply_ids = self.messages, self.reply_ids
        shorter = Compaction(self, **hooks).compacted(before, begins[-turns])
        if shorter is None:
            return ""
        self.replace_messages(shorter, self.history.changed(before, 0))
        self.reply_ids = reply_ids
        return shorter[1].content

    @property
    def turn_summary(self) -> Summary | None:
        """The `summary` of all replies of the last turn together: with calls of tools there are several."""
        return None if self.summary is None or not self._turn else total(self._turn)

    @property
    def stopped_in_thought(self) -> bool:
        """Whether the last reply ends inside its think section."""
        return ends_in_thought(self.messages[-1].content if self.messages else "", self.opens_thinking)

    def clear(self) -> None:
        """Delete all messages, their history and the attachments of the next one; the system prompt stays.

        The model's cache stays, too: the next prompt rewinds it to the common prefix.
        """
        self.attachments, self.summary, self.miss = [], None, None
        self.replace_messages([])

    def _with_calls(
        self, reply: Iterator[Delta], hooks: ReplyHooks, rewritten: Sequence[Message] = ()
    ) -> Iterator[Delta]:
        """Return a reply and those after its calls; tools of `rewritten` messages ask again before they write."""
        self._turn = []
        if not self.tools.toolbox.definitions:
            return reply
        called = {call.name for message in rewritten for call in message.tool_calls}
        rounds = ToolRounds(self, hooks.get("cancelled"), called)
        return rounds.follow(reply, lambda: self._answer([*self.messages], History(self.history.past), hooks))

    def _reply_calls(self, number: int, begun: str) -> ReplyCalls | None:
        """Return the splitter of the message `number`, a reply that has `begun`; None without tools."""
        tools = self.tools.toolbox.definitions
        if not tools:
            return None
        calls = ReplyCalls(self.model.tool_template.form, tools, self.opens_thinking, f"{number}_")
        calls.feed(begun)
        return calls

    def _seen_image(self, image: object) -> Image:
        return image_of(image, "images").seen_in(self.image_detail)

    def _answer(
        self, messages: list[Message], history: History, hooks: ReplyHooks, begun: str = "", begun_ids: Ids = ()
    ) -> Iterator[Delta]:
        """Write the reply to `messages` behind what has `begun`; `history` then leads back to the state before."""
        self._refuse_if_closed()
        before, history_before, dropped_before = self.messages, self.history, self.dropped
        seen_before = [message.shortened for message in messages]
        self.dropped = min(self.dropped, exchanges(messages)[-1])
        if any(message.has_images for message in messages):
            # Ids of images may be gone by now, with a server that has ended or for lack of room: the prompt is
            # rendered again.
            self._rendered = None
        try:
            if self.overflow == "summarise":
                found = with_summary(self, messages, history, begun_ids, Compaction(self, **hooks))
                if found is None:
                    self.dropped = dropped_before
                    return
                self.dropped = self.dropped if found[0] is messages else 0
                messages, history = found
            room = ReplyRoom(self, messages, begun_ids)
            prompt = self._fitting_prompt(messages, begun_ids, room)
            run = self.model.reply(prompt, self.next_request(), make_room=room.make, **hooks)
        except BaseException:
            self.dropped = dropped_before
            raise
        calls = self._reply_calls(len(messages), begun)
        # Until it ends, its content is all that the model has written, so that it can be continued.
        reply = Message("assistant", begun, partial=True)
        self.messages, self.history = [*messages, reply], history
        self._run, self.writing, ending = run, True, False
        self.on_change()
        try:
            for delta in run:
                reply.content += delta.text
                self.on_change()
                yield delta if calls is None else replace(delta, text=calls.feed(delta.text))
            reply.partial = run.summary.is_cut or run.summary.finish_reason == "interrupted"
            # What was held back of a reply that is cut is shown when it is continued, unless it is markup.
            if calls is not None and not reply.partial and (rest := self._split(reply, calls)):
                yield Delta(rest)
        except SystemExit:
            ending = True
            raise
        finally:
            self._run, self.writing, self.summary = None, False, run.summary
            self._turn.append(run.summary)
            whole = [message.shortened for message in messages] == seen_before and self.dropped == dropped_before
            seen, view = self._seen
            goes_on = messages[: len(seen)] == seen and self._view() == view and whole and not prompt.removed
            self.miss = run.miss if goes_on else None
            stopped = run.summary.finish_reason == "interrupted"
            if stopped and reply.content == begun and not ending:
                self.messages, self.history, self.dropped = before, history_before, dropped_before
            else:
                self._written += 1
                self.reply_ids = [*begun_ids, *run.token_ids]
                # Of what is seen now: the oldest turns may have gone while the reply was written.
                self._seen_ids = [*self.prompt(messages[self.dropped :]).ids, *self.reply_ids]
                self._seen = [*self.messages], self._view()
                # Where the context ended the reply, its last token was chosen but has no position.
                self._set_tokens_in_use(min(len(self._seen_ids), self.model.context_size))
            self.on_change()

    def _split(self, reply: Message, calls: ReplyCalls) -> str:
        """Split a whole reply into its text and its calls; return the text that was held back."""
        rest = calls.finish()
        reply.content, reply.reasoning, reply.tool_calls = calls.content, calls.reasoning, calls.calls
        for fault in calls.faults:
            self.on_notice(f"a call of the model is malformed: {fault}")
        return rest

    def _fitting_prompt(self, messages: list[Message], begun: Ids, room: ReplyRoom) -> Prompt:
        """Return the prompt of a reply that has `begun`, shorter if it leaves the reply too little room."""
        prompt = self.prompt(messages[self.dropped :])
        if begun:
            prompt = replace(prompt, joins_reply=True, begun=begun)
        ids, removed = room.fit([*prompt.ids, *begun])
        return replace(prompt, ids=ids, previous=self._seen_ids, removed=removed)


def _check_answered(messages: Sequence[Message]) -> None:
    if calls := open_calls(messages):
        raise SettingError(f"the call {calls[0].id!r} of the last reply has no result yet: give it, or take it back")
