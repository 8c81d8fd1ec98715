"""Log-probabilities in OpenAI's two forms: of chat completions and of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinychat.generate.logprobs import ScoredToken, TokenLogprobs
from tinychat.text.tokenizer import Tokenizer


def chat_logprobs(scored: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return ``logprobs`` of a chat completion's choice."""
    return {"content": token_list(scored, tokenizer), "refusal": None}


def token_list(scored: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, with_id: bool = False) -> list[dict[str, Any]]:
    """Return each token with the most likely alternatives, `with_id` as llama-server gives them."""
    return [
        _token_fields(one.chosen, tokenizer, with_id)
        | {"top_logprobs": [_token_fields(top, tokenizer, with_id) for top in one.best]}
        for one in scored
    ]


def _token_fields(scored: ScoredToken, tokenizer: Tokenizer, with_id: bool) -> dict[str, Any]:
    spelled = tokenizer.token_bytes(scored.id)
    fields = {"id": scored.id} if with_id else {}
    return fields | {"token": spelled.decode("utf-8", "replace"), "logprob": scored.logprob, "bytes": [*spelled]}


def no_logprobs() -> dict[str, list[Any]]:
    """Return ``logprobs`` of a completion's choice without tokens."""
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


class CompletionLogprobs:
    """Collects ``logprobs`` of a completion's choice: parallel lists of texts, log-probabilities and offsets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._offset = tokenizer, 0

    def add(self, scored: Sequence[TokenLogprobs | int]) -> dict[str, list[Any]]:
        """Return the lists of the next tokens; an id alone, as the first of a text, has no log-probability."""
        fields = no_logprobs()
        for one in scored:
            if isinstance(one, TokenLogprobs):
                text, logprob = self._spelled(one.chosen.id), one.chosen.logprob
                best = {self._spelled(top.id): top.logprob for top in one.best}
            else:
                text, logprob, best = self._spelled(one), None, None
            for name, value in zip(fields, (text, logprob, best, self._offset)):
                fields[name].append(value)
            self._offset += len(text)
        return fields

    def _spelled(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
