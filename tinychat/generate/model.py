"""The model as programs see it: text and ids in, text, ids and logits out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tinychat.generate.constraint import Constraint
from tinychat.generate.engine import Engine, Logits
from tinychat.generate.loop import Generation, MakeRoom, generate
from tinychat.generate.prefill import PrefillProgress, check_prompt
from tinychat.generate.settings import SamplingOptions, SamplingSettings
from tinychat.generate.stopping import as_strings
from tinychat.generate.summary import Summary
from tinychat.text.guard import unguard

if TYPE_CHECKING:
    from tinychat.model.config import ModelConfig
    from tinychat.text.template import ChatTemplate
    from tinychat.text.tokenizer import Tokenizer


@dataclass
class Model:
    """A loaded model: engine, tokenizer and chat template in one.

    One thread at a time may use it. Every run passes all token ids; the engine keeps the keys and
    values of the last run and computes only what follows the common beginning.

    Attributes
    ----------
    path : Path
        The model folder.
    stop_ids : frozenset of int
        Tokens that end a reply.
    """

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    config: ModelConfig
    path: Path
    _last: Generation | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def context_size(self) -> int:
        """Most tokens of prompt and reply together."""
        return self.engine.context_size

    @property
    def summary(self) -> Summary | None:
        """Counts, times and end of the last run; None before the first."""
        return None if self._last is None else self._last.summary

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Return the token ids of plain text; special tokens' names in it stay plain text."""
        return self.tokenizer.encode(text, add_bos=add_bos)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out."""
        return self.tokenizer.decode(ids)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text that the chat template makes of messages with `role` and `content`."""
        # The marks that keep their contents apart from control tokens are for `render_ids` only.
        return unguard(self.template.render(messages, add_generation_prompt=add_generation_prompt))

    def render_ids(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Return the token ids of the rendered messages; their contents never become special tokens."""
        return self.template.render_ids(messages, add_generation_prompt=add_generation_prompt)

    def logits(self, ids: Sequence[int]) -> Logits:
        """Run `ids` from an empty context.

        Returns
        -------
        float32 [T, vocab_size]
            Row t holds the logits of the token after ``ids[t]``.

        Raises
        ------
        ContextError
            If there are more ids than the context holds.
        SettingError
            If there are no ids, or one is outside the vocabulary.
        """
        check_prompt(ids, self.engine.vocab_size, self.engine.context_size)
        return self.engine.logits(ids)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        joins_prompt: bool = True,
        make_room: MakeRoom | None = None,
        logprobs: int | None = None,
        constraint: Constraint | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation:
        """Continue `prompt`, a text or token ids, piece by piece.

        Parameters
        ----------
        prompt : str or sequence of int
            A text is encoded as plain text with the model's beginning-of-text token before it.
        max_tokens : int, optional
            Most new tokens; None for as many as the context holds.
        stop : sequence of str
            Texts that end the reply.
        ignore_eos : bool
            Go on past the model's own stop tokens.
        on_prefill, cancelled, joins_prompt, make_room, logprobs, constraint
            See `tinychat.generate.loop.generate`.
        **sampling
            Fields of `SamplingSettings`.

        Raises
        ------
        ContextError
            If the prompt is longer than the context.
        SettingError
            If an argument is out of range.
        """
        ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        self._last = generate(
            self.engine,
            self.tokenizer,
            ids,
            SamplingSettings(**sampling),
            self.stop_ids,
            as_strings(stop),
            max_tokens,
            on_prefill,
            ignore_eos,
            cancelled,
            joins_prompt,
            make_room,
            logprobs,
            constraint,
        )
        return self._last

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int | None = 64,
        temperature: float = 0.0,
        ignore_eos: bool = False,
    ) -> list[int]:
        """Return the token ids that continue `ids`, without the stop token.

        Raises
        ------
        ContextError
            If there are more ids than the context holds.
        SettingError
            If an argument is out of range.
        """
        run = self.stream(ids, max_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos)
        for _ in run:
            pass
        return run.token_ids


def load_folder(
    folder: Path,
    *,
    context: int | None = None,
    threads: int | None = None,
    kv: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model folder.

    Parameters
    ----------
    folder : Path
        Written by `tinychat.convert`.
    context : int, optional
        Positions of the KV cache; the model's own number when omitted.
    threads : int, optional
        Threads of the kernels; what the process may use when omitted.
    kv : str, optional
        Type of the KV cache: "bf16", the usual one; "f16", finer, that of models narrower than 512; "int8", about half
        the size; "f32", that of unquantized models.
    progress : callable, optional
        Called with (kernels ready, kernels in all) when they have to be compiled first.

    Raises
    ------
    TinychatError
        If the folder is damaged, or a setting is out of range.
    """
    # Imported here so that light commands do not load Numba, Jinja and the tokenizers.
    from tinychat.model.config import ModelConfig
    from tinychat.model.loading import load_engine
    from tinychat.text.stop import stop_ids
    from tinychat.text.template import load_template
    from tinychat.text.tokenizer import load_tokenizer

    engine = load_engine(folder, context_size=context, threads=threads, kv=kv, progress=progress)
    tokenizer = load_tokenizer(folder)
    template = load_template(folder, tokenizer)
    config = ModelConfig.from_file(folder / "config.json")
    return Model(engine, tokenizer, template, stop_ids(folder, tokenizer, template), config, folder)
