"""One reply: takes logits, chooses tokens, decodes their text, ends, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from tinychat.engine.ids import common_length
from tinychat.generate.constraint_state import Region
from tinychat.generate.drafts import Guess
from tinychat.generate.logprobs import ScoredToken, TokenLogprobs, token_logprobs
from tinychat.generate.prompt import Prompt
from tinychat.generate.repetition import Repetition
from tinychat.generate.request import Request
from tinychat.generate.sampling import Sampler
from tinychat.generate.sequence import Logits
from tinychat.generate.stopping import StopStringFilter
from tinychat.generate.thinking import ThinkBudget
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.think_sections import CLOSING_TEXT, ends_in_thought
from tinychat.text.thought_reader import ThoughtReader

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "stop_string", "length", "context", "loop", "interrupted"]
"""Why a reply ended: a stop id, a stop string, `max_tokens`, the context is full, a loop, or it was stopped."""


@dataclass(frozen=True)
class Delta:
    """New text and tokens of a reply.

    Attributes
    ----------
    text : str
        New text that is final; empty while a character or a stop string may be incomplete.
    ids : tuple of int
        The tokens of one step; empty in a last delta that only brings held-back text.
    logprobs : tuple of TokenLogprobs
        One for each id, if they were asked for.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass
class Summary:
    """Counts and times of one reply; times in seconds, without those of the caller between deltas.

    `prompt_tokens` include the `reused_tokens` that were cached, `new_tokens` exclude the stop id. `decode_steps` are
    the tokens after the first, which comes from the prefill, and the stop id; `accepted_tokens` of the `drafted_tokens`
    are part of the reply and took no step of their own. `first_token_seconds` count from the start. `seed` gives these
    tokens again.
    """

    prompt_tokens: int
    reused_tokens: int = 0
    new_tokens: int = 0
    decode_steps: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = 0.0
    finish_reason: FinishReason = "interrupted"
    seed: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens run per second, without reused ones."""
        return _rate(self.prompt_tokens - self.reused_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Tokens decoded per second after the first."""
        return _rate(self.decode_steps, self.decode_seconds)

    @property
    def is_cut(self) -> bool:
        """Whether the reply ended before the model ended it."""
        return self.finish_reason in ("length", "context", "loop")

    def as_json(self) -> dict[str, object]:
        """Return reason of the end, counts, rates and seed for programs."""
        return {
            "finish_reason": self.finish_reason,
            "truncated": self.is_cut,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "new_tokens": self.new_tokens,
            "prefill_tokens_per_second": self.prefill_rate,
            "decode_tokens_per_second": self.decode_rate,
            "first_token_seconds": self.first_token_seconds,
            "seed": self.seed,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
        }


def total(summaries: Sequence[Summary]) -> Summary:
    """Return the counts and times of replies together, with the seed of the first and the end of the last."""
    first, last = summaries[0], summaries[-1]
    added = {
        one.name: sum(getattr(summary, one.name) for summary in summaries)
        for one in fields(Summary)
        if one.name not in ("seed", "first_token_seconds", "finish_reason")
    }
    return replace(first, finish_reason=last.finish_reason, **added)


class Reply:
    """A reply that grows by one token with every row of logits.

    It runs nothing itself. Its driver reads the prompt and reports that by `prompt_was_read`, then gives each row of
    logits to `accept` and runs the token that was chosen, until `finish_reason` is set. `token_ids` are those so far.
    """

    def __init__(
        self, prompt: Prompt, request: Request, tokenizer: Tokenizer, stop_ids: frozenset[int] = frozenset()
    ) -> None:
        self.prompt = prompt
        self.request = request
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._tokenizer = tokenizer
        self._stop_ids = frozenset() if request.ignore_eos else stop_ids
        self._sampler = Sampler(request, tokenizer)
        # Marks that the calls' own format reads stay text.
        marks = tokenizer.thought_marks
        marks = None if marks is None or not prompt.shown.isdisjoint(marks.by_id) else marks
        thoughts = None if marks is None else ThoughtReader(marks, tokenizer, prompt.opens_thinking, prompt.begun)
        in_thought = _is_in_thought(prompt, tokenizer) if thoughts is None else thoughts.is_thinking
        self._constraint = None
        if request.constraint is not None:
            self._constraint = request.constraint.start(in_thought, request.think_budget != 0, prompt.shown)
        is_covered = request.constraint is not None and not request.constraint.leaves_text
        self._repetition = Repetition(request, prompt.ids, tokenizer.token_bytes)
        # The header of the answer, where that is all that a grammar holds.
        self._first_ids: list[int] = []
        is_whole = is_covered and not (request.constraint and request.constraint.is_of_calls)
        if marks is not None and is_whole and not (prompt.joins_reply or in_thought):
            self._first_ids = tokenizer.encode_rendered(marks.before_answer)
        self._budget = None
        if request.think_budget is not None and (not is_covered or (self._constraint and self._constraint.may_think)):
            # The grammar counts every line end behind the section.
            closing = CLOSING_TEXT.rstrip("\n") if is_covered else CLOSING_TEXT
            self._budget = ThinkBudget(request.think_budget, tokenizer, in_thought, closing, thoughts)
        # A grammar counts every space, so that none may be taken for a mark of the first word.
        joins_prompt = prompt.joins_reply or is_covered
        self._detokenizer = Detokenizer(tokenizer, prompt.ids if joins_prompt else (), prompt.shown, thoughts)
        self._stop_strings = StopStringFilter((*request.stop, *prompt.stop))
        self._deltas: list[Delta] = []
        self._counted = Summary(len(prompt.ids), seed=self._sampler.seed)

    @property
    def summary(self) -> Summary:
        """Counts and times so far; a reply that did not reach its end counts as interrupted."""
        reason = self.finish_reason or "interrupted"
        # In half the time of `replace`.
        return Summary(**(vars(self._counted) | {"new_tokens": len(self.token_ids), "finish_reason": reason}))

    @property
    def reused_tokens(self) -> int:
        """Leading tokens of the prompt that were cached."""
        return self._counted.reused_tokens

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(delta.text for delta in self._deltas)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it; None if none did."""
        return self._stop_strings.found

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens included."""
        return self._tokenizer.decode(ids, skip_special=False)

    def prompt_was_read(self, reused_tokens: int, seconds: float) -> None:
        """Set how many leading tokens were cached, and how long the others took."""
        self._counted.reused_tokens, self._counted.prefill_seconds = reused_tokens, seconds

    def accept(self, logits: Logits, seconds: float = 0.0) -> Delta:
        """Choose the next token by logits, float32 [vocab_size], and return the text that it settles.

        `seconds` is the model's time for them; the first ones come from the prompt and count there. `ModelFolderError`
        if they hold no finite maximum, which only damaged weights produce; `SettingError` if no token fits the
        constraint.
        """
        started, counted = perf_counter(), self._counted
        delta = self._choose(logits)
        seconds += perf_counter() - started
        if self._deltas:
            counted.decode_seconds += seconds
            counted.decode_steps += 1
        else:
            counted.first_token_seconds = counted.prefill_seconds + seconds
        self._deltas.append(delta)
        return delta

    def accept_draft(self, rows: Logits, draft: Sequence[int], seconds: float) -> Delta:
        """Choose tokens as long as they are those of a draft that has run, and one more.

        `rows`, float32 [len(draft) + 1, vocab_size], are the logits after the tokens so far and after each id of the
        draft; `seconds` the model's time for all of them.
        """
        delta = self.accept(rows[0], seconds)
        if not draft:
            return delta
        deltas = [delta]
        for token_id, row in zip(draft, rows[1:]):
            if self.finish_reason is not None or self.token_ids[-1] != token_id:
                break
            deltas.append(self.accept(row))
        delta = _joined(deltas)
        self._counted.drafted_tokens += len(draft)
        self._counted.accepted_tokens += common_length(draft, delta.ids)
        return delta

    def guess(self) -> Guess:
        """Return a chooser of the ids that this reply would choose by such logits, without a constraint."""
        sampler, before = self._sampler.fork(), self._repetition.all_ids
        return lambda logits, ahead: sampler.sample(logits, [*before, *ahead])

    def finish(self, reason: FinishReason) -> str:
        """End the reply and return the text that was held back."""
        text = self._held_back(reason)
        self._deltas.append(Delta(text))
        return text

    def as_json(self) -> dict[str, object]:
        """Return text, token ids, log-probabilities if they were asked for, and the summary for programs."""
        return self.delta_as_json(_joined(self._deltas)) | self.summary.as_json()

    def delta_as_json(self, delta: Delta) -> dict[str, object]:
        """Return text, token ids and log-probabilities of one delta for programs."""
        fields: dict[str, object] = {"text": delta.text, "token_ids": [*delta.ids]}
        if self.request.logprobs is not None:
            fields["logprobs"] = [self._token_fields(token) for token in delta.logprobs]
        return fields

    # The former name, for one release.
    piece_as_json = delta_as_json

    def _choose(self, logits: Logits) -> Delta:
        token_id = self._next_id(logits)
        if token_id in self._stop_ids:
            return Delta(self._held_back("stop"))
        self.token_ids.append(token_id)
        if self._first_ids:
            del self._first_ids[0]
        elif self._constraint is not None:
            self._constraint.accept(token_id)
        text, tag = self._detokenizer.add(token_id), self._detokenizer.tag
        self._repetition.add(token_id, text)
        if self._budget is not None:
            self._budget.add(tag + text)
        # A tag is none of the model's words: no stop string is in it, or goes across it.
        before = self._stop_strings.finish() + tag if tag else ""
        text = before + self._stop_strings.add(text)
        if self._stop_strings.found is not None:
            self.finish_reason = "stop_string"
        elif self._constraint is not None and self._constraint.finished:
            text += self._held_back("stop")
        elif len(self.token_ids) == self.request.max_tokens:
            text += self._held_back("length")
        elif self._repetition.is_loop():
            text += self._held_back("loop")
        count = self.request.logprobs
        return Delta(text, (token_id,), () if count is None else (token_logprobs(logits, token_id, count),))

    def _next_id(self, logits: Logits) -> int:
        """Return a forced token, else the sampler's choice."""
        repetition = self._repetition
        repetition.region = Region.PROSE
        if self._first_ids:
            return self._first_ids[0]
        forced = None if self._budget is None else self._budget.forced()
        if forced is not None:
            return forced
        if self._constraint is not None:
            logits = np.where(self._constraint.allowed(), logits, np.float32(-np.inf))
            repetition.region = self._constraint.region
        return self._sampler.sample(logits, repetition.penalized_ids, repetition.is_structured)

    def _held_back(self, reason: FinishReason) -> str:
        """Set the finish reason and return the text that was held back."""
        # The first bytes of a character whose others were cut off are not text.
        last = self._detokenizer.finish() if reason in ("stop", "stop_string") else ""
        text = self._stop_strings.add(last) + self._stop_strings.finish()
        self.finish_reason = reason if self._stop_strings.found is None else "stop_string"
        return text

    def _token_fields(self, token: TokenLogprobs) -> dict[str, object]:
        best = [self._scored_fields(scored) for scored in token.best]
        return self._scored_fields(token.chosen) | {"best": best}

    def _scored_fields(self, scored: ScoredToken) -> dict[str, object]:
        data = self._tokenizer.token_bytes(scored.id)
        text = data.decode("utf-8", "replace")
        return {"id": scored.id, "text": text, "bytes": [*data], "logprob": scored.logprob}


def _is_in_thought(prompt: Prompt, tokenizer: Tokenizer) -> bool:
    """Return whether a reply goes on inside its think section, which tags mark."""
    return ends_in_thought(tokenizer.decode(prompt.begun) if prompt.begun else "", prompt.opens_thinking)


def _joined(deltas: list[Delta]) -> Delta:
    ids = (token_id for delta in deltas for token_id in delta.ids)
    logprobs = (token for delta in deltas for token in delta.logprobs)
    return Delta("".join(delta.text for delta in deltas), tuple(ids), tuple(logprobs))


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else 0.0
