"""A reply as JSON, for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinychat.generate.logprobs import Candidate, TokenLogprobs
    from tinychat.generate.loop import Piece
    from tinychat.generate.model import Model
    from tinychat.generate.summary import Summary


def summary_fields(summary: Summary) -> dict[str, object]:
    """Return the end, counts and rates of a run."""
    return {
        "finish_reason": summary.finish_reason,
        "truncated": summary.finish_reason in ("length", "context"),
        "prompt_tokens": summary.prompt_tokens,
        "reused_tokens": summary.reused_tokens,
        "new_tokens": summary.new_tokens,
        "prefill_tokens_per_second": summary.prefill_rate,
        "decode_tokens_per_second": summary.decode_rate,
        "first_token_seconds": summary.first_token_seconds,
        "seed": summary.seed,
    }


def piece_fields(model: Model, pieces: Iterable[Piece], with_logprobs: bool) -> dict[str, object]:
    """Return text and token ids of pieces, and the log-probabilities if they were asked for."""
    pieces = list(pieces)
    fields: dict[str, object] = {
        "text": "".join(piece.text for piece in pieces),
        "token_ids": [token_id for piece in pieces for token_id in piece.ids],
    }
    if with_logprobs:
        fields["logprobs"] = [_token_fields(model, token) for piece in pieces for token in piece.logprobs]
    return fields


def _token_fields(model: Model, token: TokenLogprobs) -> dict[str, object]:
    best = [_candidate_fields(model, candidate) for candidate in token.best]
    return _candidate_fields(model, token.chosen) | {"best": best}


def _candidate_fields(model: Model, candidate: Candidate) -> dict[str, object]:
    text = model.tokenizer.token_bytes(candidate.id).decode("utf-8", "replace")
    return {"id": candidate.id, "text": text, "logprob": candidate.logprob}
