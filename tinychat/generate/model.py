"""The model as programs use it: text and ids in; text, ids and logits out."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Generator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt

from tinychat.errors import FieldError, SettingError, TinychatError
from tinychat.generate.batched import Asked, BatchEvent, replies_in_order, write_many
from tinychat.generate.constraints import Constraints
from tinychat.generate.draft_choice import drafts_of
from tinychat.generate.drafts import Drafts
from tinychat.generate.driver import Driver
from tinychat.generate.grammar import Constraint, Grammar
from tinychat.generate.image_prompts import ImagePrompts
from tinychat.generate.prompt import Prompt, check_prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request, RequestFields, as_request
from tinychat.generate.run import MakeRoom, Run
from tinychat.generate.sequence import Ids, Logits, logits_after, logits_of_all
from tinychat.generate.stream import PrefillProgress, Stream
from tinychat.models.embedder import Embedder
from tinychat.models.ranker import Ranker
from tinychat.text.guard import unguard
from tinychat.tools.rendering import ToolTemplate

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine
    from tinychat.engine.sequence import Sequence
    from tinychat.generate.embeddings import Embedding
    from tinychat.generate.ranking import Ranking
    from tinychat.images.encoder import ImageEncoder
    from tinychat.text.template import ChatTemplate
    from tinychat.text.tokenizer import Tokenizer
    from tinychat.tools.definitions import ToolChoice

_FOR_PROGRAMS = (
    "astream close context_size decode embed encode generate generate_many logits name path rank render resize stream "
    "trained_length vocab_size"
).split()


class Model:
    """A loaded model: an engine and the driver of its replies, tokenizer and chat template in one.

    Any number of streams, chats and threads may use it at once; each gets the tokens that it would get alone. Every run
    passes all token ids, and computes only what follows the longest cached prefix. `tinychat.load` makes one; its
    attributes are the `path` of the model folder, `tokenizer`, `template`, `stop_ids` and `own_defaults`, the settings
    that the model's makers advise. `embedder` says how it makes vectors, `ranker` how it ranks, None if it does not; if
    it `writes` no text, that is all it does.
    """

    runs_here = True
    """False for the model of a server: see `tinychat.client.chat_model`."""

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        stop_ids: frozenset[int],
        path: Path,
        drafts: Drafts | None = None,
        own_defaults: Mapping[str, float] | None = None,
        embedder: Embedder | None = None,
        ranker: Ranker | None = None,
        encoder: ImageEncoder | None = None,
    ) -> None:
        self.tokenizer, self.template, self.stop_ids, self.path = tokenizer, template, stop_ids, path
        self.own_defaults: Mapping[str, float] = own_defaults or {}
        self.embedder: Embedder = embedder or Embedder()
        self.writes: bool = embedder is None
        self.ranker: Ranker | None = ranker
        self.draft: bool | str = drafts is not None
        self.driver: Driver = Driver(sequence, drafts)
        self._images = ImagePrompts(self.driver, tokenizer, encoder)

    def __repr__(self) -> str:
        return f"<Model {self.name}>"

    def __dir__(self) -> list[str]:
        # What programs call, for the Tab key; the rest of the package uses more.
        return [*_FOR_PROGRAMS]

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all replies and free the memory of their keys and values; the model cannot be used any more."""
        self.driver.close()

    @property
    def engine(self) -> Engine:
        """The engine of the model."""
        return self.driver.engine

    @property
    def sequence(self) -> Sequence:
        """The most recently used of the sequences without a reply; setting it replaces them."""
        return self.driver.recent

    @sequence.setter
    def sequence(self, sequence: Sequence) -> None:
        drafts = self.driver.drafts
        self.driver.adopt(sequence, drafts and drafts.beside(sequence))

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def sees_images(self) -> bool:
        """Whether messages may have images."""
        return self._images.are_seen

    @property
    def context_size(self) -> int:
        """Most tokens of prompt and reply together."""
        return self.driver.context_size

    @property
    def trained_length(self) -> int:
        """Positions that the model was trained on: a larger context runs, but replies lose their sense."""
        return self.engine.trained_length

    @property
    def vocab_size(self) -> int:
        """Length of one row of logits; ids are smaller."""
        return self.engine.vocab_size

    def change_drafts(self, draft: bool | Model | Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Switch drafts on or off, or let a smaller model, or a folder's drafter, write them, too: see `drafts_of`."""
        if isinstance(draft, Model):
            draft.check_writes()
            if not self.tokenizer.agrees_with(draft.tokenizer):
                raise FieldError("draft", f"must be a model with the vocabulary of {self.name}, unlike {draft.name}")
        smaller = draft.sequence if isinstance(draft, Model) else draft
        self.driver.change_drafts(drafts_of(self.sequence, self.name, smaller, progress))
        self.draft = draft if isinstance(draft, bool) else draft.name

    def resize(self, context_size: int) -> None:
        """Change the capacity of the context; the cache of the last conversation stays.

        `SettingError` if its ids or this machine's memory do not fit, or replies are being written.
        """
        with self.driver.exclusive():
            sequence = self.driver.recent
            sequence.resize(context_size)
            self.driver.adopt(sequence)

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Return the token ids of plain text; special tokens' names in it stay plain text."""
        return self.tokenizer.encode(text, add_bos=add_bos)

    def decode(self, ids: Ids) -> str:
        """Return the text of `ids`, special tokens left out."""
        return self.tokenizer.decode(ids)

    def render(self, messages: abc.Sequence[Mapping[str, object]], add_generation_prompt: bool = True) -> str:
        """Return the text of the chat template for messages with `role` and `content`."""
        # The marks that keep their contents apart from control tokens are for `render_ids` only.
        return unguard(self.tool_template.render(messages, add_generation_prompt))

    def render_ids(
        self, messages: abc.Sequence[Mapping[str, object]], add_generation_prompt: bool = True, **variables: object
    ) -> list[int]:
        """Return the token ids of the rendered messages, whose contents never become special tokens.

        `variables` are the template's, such as ``enable_thinking=False``, or ``tools=[...]`` in OpenAI's form.
        """
        if not self.sees_images:
            return self.tool_template.render_ids(messages, add_generation_prompt, **variables)
        return self._images.encode(self.tool_template.render(messages, add_generation_prompt, **variables), messages)

    @cached_property
    def tool_template(self) -> ToolTemplate:
        """The chat template with tools, calls and results; its `form` is that of the model's calls."""
        return ToolTemplate(self.template, self.sees_images)

    @cached_property
    def call_markers(self) -> frozenset[int]:
        """The control tokens that are text in a reply which may call tools: see `Prompt.shown`."""
        return self.tool_template.marker_ids(self.tokenizer) - self.stop_ids

    def takes_message(self, system: str | None = None, as_chat: bool | None = None) -> bool:
        """Return whether a text becomes a message: `as_chat`, by default if there is a chat template or `system`."""
        if as_chat is None:
            return system is not None or not self.template.is_fallback
        return as_chat

    def text_prompt(
        self, text: str, system: str | None = None, as_chat: bool | None = None, thinking: bool | None = None
    ) -> Prompt:
        """Return the prompt of one text, as a message if `takes_message`; errors are those of `chat_prompt`."""
        if not self.takes_message(system, as_chat):
            return Prompt(self.encode(text))
        return self.chat_prompt([{"role": "user", "content": text}], system, thinking)

    def chat_prompt(
        self,
        messages: abc.Sequence[Mapping[str, object]],
        system: str | None = None,
        thinking: bool | None = None,
        tools: abc.Sequence[Mapping[str, object]] = (),
    ) -> Prompt:
        """Return the prompt that asks for the reply to a conversation, the system prompt before it.

        `thinking` asks for a reply with or without it, of models whose templates can; None leaves it to the template.
        `tools` are definitions in OpenAI's form. `TextError` if the template refuses the conversation.
        """
        standing: list[Mapping[str, object]] = [{"role": "system", "content": system}] if system else []
        given: dict[str, object] = {"tools": list(tools)} if tools else {}
        variables = self.template.thinking_variables(thinking) | given
        ids = self.render_ids([*standing, *messages], True, **variables)
        shown = self.call_markers if tools else frozenset[int]()
        return Prompt(ids, False, self.template.stop_strings, self.opens_thinking(thinking), shown=shown)

    def opens_thinking(self, thinking: bool | None) -> bool:
        """Return whether the reply to a `chat_prompt` begins inside its think section."""
        variables = self.template.thinking_variables(thinking)
        return self.template.opens_thinking_with(**variables) if variables else self.template.opens_thinking

    @cached_property
    def constraints(self) -> Constraints:
        """The constraints of replies that were made for this model."""
        return Constraints(self.tokenizer, self.vocab_size, self.stop_ids)

    def constraint(self, grammar: Grammar) -> Constraint:
        """Return the constraint of a grammar for the tokens of this model; `SettingError` if it is too large."""
        return self.constraints.of(grammar)

    def call_constraint(self, choice: ToolChoice) -> Constraint | None:
        """Return the constraint of replies that may call tools: see `Constraints.of_calls`."""
        return self.constraints.of_calls(self.tool_template.form, choice)

    def logits(self, ids: Ids) -> Logits:
        """Run `ids` from an empty context and return the logits after each of them, float32 [T, vocab_size].

        `ContextError` if there are more ids than the context holds; `SettingError` for none, or one that means nothing.
        """
        self.check_writes()
        check_prompt(ids, self.engine, self.context_size)
        with self.driver.exclusive() as let_signals_act:
            return logits_of_all(self.driver.recent, ids, let_signals_act)

    def next_logits(self, ids: Ids) -> Logits:
        """Return the logits of the token after `ids`, float32 [vocab_size], computing only what is not cached."""
        self.check_writes()
        check_prompt(ids, self.engine, self.context_size)
        with self.driver.exclusive() as let_signals_act:
            return logits_after(self.driver.recent, ids, let_signals_act)

    def embed(
        self,
        texts: abc.Iterable[str | Ids],
        pooling: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text: the product of two is the cosine of their angle.

        A text has the same vector alone or among others.

        Parameters
        ----------
        texts : iterable of str or sequence of int
            Ids are taken as they are; a text gets the tokens that the tokenizer's makers put around it.
        pooling : {"mean", "last", "cls"}, optional
            Mean of the final hidden states, or that of the last or first token; when omitted that of an embedding
            model's files, else "mean".
        prompt : str, optional
            Name of a prompt of an embedding model, such as "query", which is put before the texts; its default one when
            omitted.
        dimensions : int, optional
            How many of each vector's numbers are taken, the first ones; all when omitted. Some models are trained so
            that few tell most (Matryoshka: Kusupati et al., 2022, https://arxiv.org/abs/2205.13147).

        Returns
        -------
        float32 [texts, dimensions]

        Raises
        ------
        ContextError
            If a text is longer than the context.
        SettingError
            If a text has no tokens, or an argument is out of range.
        """
        return self.embedding.vectors(texts, pooling, prompt, dimensions)

    @cached_property
    def embedding(self) -> Embedding:
        """The way that the model makes vectors."""
        # Imported here: it needs the compiler, which models of a server do without.
        from tinychat.generate.embeddings import Embedding

        if self.ranker is not None:
            raise SettingError(f"{self.name} ranks documents, and gives no vectors: use `tinychat rerank`")
        return Embedding(self.embedder, self.driver, self.tokenizer, self.path)

    def rank(self, query: str, documents: abc.Iterable[str], instruction: str | None = None) -> npt.NDArray[np.float32]:
        """Return how well each document answers a query, by a model that ranks (a reranker, or cross-encoder).

        Parameters
        ----------
        query, documents : str, iterable of str
        instruction : str, optional
            What the query asks for, in words, for models whose template takes one (Qwen3-Reranker).

        Returns
        -------
        float32 [documents]
            From 0 to 1; each is the same alone and among others.

        Raises
        ------
        ContextError
            If query and document are longer together than the context.
        SettingError
            If the model does not rank, or takes no instruction.
        """
        return self.ranking.relevance(query, documents, instruction)

    @cached_property
    def ranking(self) -> Ranking:
        """The way that the model ranks; SettingError where it does not."""
        from tinychat.generate.ranking import Ranking

        if self.ranker is None:
            raise SettingError(f"{self.name} does not rank: choose a model that does, such as bge-reranker-v2-m3")
        return Ranking(self.ranker, self.driver, self.tokenizer, self.template, self.path)

    def check_writes(self) -> None:
        """Refuse to write with a model that gives embeddings or ranks: its logits mean nothing."""
        if self.ranker is not None:
            raise SettingError(f"{self.name} ranks documents, and writes no text: use `tinychat rerank`")
        if not self.writes:
            raise SettingError(f"{self.name} gives embeddings, not text: use `tinychat embed`, or choose another model")

    def stream(
        self,
        prompt: str | Ids,
        *,
        joins_prompt: bool = True,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        make_room: MakeRoom | None = None,
        **fields: Unpack[RequestFields],
    ) -> Stream:
        """Continue `prompt`, a text or token ids.

        Parameters
        ----------
        prompt : str or sequence of int
            A text is encoded as plain text with the model's beginning-of-text token before it.
        joins_prompt : bool
            Whether the reply goes on where the prompt's text ends: see `Prompt.joins_reply`.
        on_prefill, cancelled, make_room : callable, optional
            See `Stream` and `tinychat.generate.run.Run`.
        **fields
            Fields of `Request`, such as ``temperature=0.0`` or ``max_tokens=100``.

        Returns
        -------
        Stream
            An iterator of `Delta`; its `summary` has counts, times and the reason of the end.

        Raises
        ------
        ContextError
            If the prompt is longer than the context.
        SettingError
            If an argument is out of range.
        """
        run = self._run(self._prompt(prompt, joins_prompt), as_request(**fields), make_room)
        return Stream(self.driver, run, on_prefill, cancelled)

    def astream(self, prompt: str | Ids, *, joins_prompt: bool = True, **fields: Unpack[RequestFields]) -> Stream:
        """Continue `prompt` in an event loop: ``async for delta in model.astream(...)``; as `stream` otherwise."""
        return self.stream(prompt, joins_prompt=joins_prompt, **fields)

    def reply(
        self,
        prompt: Prompt,
        request: Request,
        *,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        make_room: MakeRoom | None = None,
        ahead: int | None = 1,
    ) -> Stream:
        """Begin the reply to a prompt; parameters are those of `Stream` and `Run`, errors those of `stream`."""
        return Stream(self.driver, self._run(prompt, request, make_room, ahead), on_prefill, cancelled)

    def _prompt(self, prompt: str | Ids, joins_prompt: bool = True) -> Prompt:
        return Prompt(self.encode(prompt) if isinstance(prompt, str) else list(prompt), joins_prompt)

    def _run(
        self, prompt: Prompt, request: Request, make_room: MakeRoom | None = None, ahead: int | None = None
    ) -> Run:
        self.check_writes()
        check_prompt(prompt.ids, self.engine, self.context_size)
        if any(token_id >= self.vocab_size for token_id, _ in request.biases):
            raise FieldError("logit_bias", f"must be of token ids below {self.vocab_size}")
        return Run(Reply(prompt, request, self.tokenizer, self.stop_ids), make_room, ahead, self.engine.images)

    def generate(
        self, ids: Ids, max_tokens: int | None = 64, temperature: float = 0.0, ignore_eos: bool = False
    ) -> list[int]:
        """Return the token ids that continue `ids`, without the stop token; errors are those of `stream`."""
        stream = self.stream(ids, max_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos)
        return stream.to_end().token_ids

    def write_many(self, asked: abc.Iterable[Asked], parallel: int | None = None) -> Generator[BatchEvent, None, None]:
        """Write a reply to each prompt, several at once: see `tinychat.generate.batched.write_many`."""
        return write_many(self.driver, map(self.run_or_error, asked), parallel)

    def run_or_error(self, asked: Asked) -> Run | TinychatError:
        """Return the run of a reply, which nobody writes yet, for `whole_replies`; or the error that comes instead."""
        if isinstance(asked, TinychatError):
            return asked
        try:
            return self._run(*asked)
        except TinychatError as error:
            return error

    def generate_many(
        self, prompts: abc.Iterable[str | Ids], parallel: int | None = None, **fields: Unpack[RequestFields]
    ) -> list[Reply]:
        """Continue several prompts at once, to the tokens that each would have alone.

        `prompts`, `fields` and errors are those of `stream`; `parallel` replies are written at once, by default a
        number found by measurement. Returns the replies in the order of the prompts, with `Reply.text` and
        `Reply.token_ids`.
        """
        if isinstance(prompts, str):
            raise FieldError("prompts", "must be a list of texts or token ids, not one text")
        request = as_request(**fields)
        asked = [self.run_or_error((self._prompt(prompt), request)) for prompt in prompts]
        return replies_in_order(self.driver, asked, parallel)
