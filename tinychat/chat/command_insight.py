"""Commands that show what the model sees and how it chose."""

from __future__ import annotations

import math
from textwrap import shorten

from tinychat.chat.command import as_count
from tinychat.chat.desk import Desk
from tinychat.chat.explanation import explain_reply
from tinychat.generate.logprobs import Candidate

_SHOWN_TOKENS = 200


def stats(desk: Desk, _argument: str) -> None:
    """Show context use and the rates of the last reply."""
    chat = desk.chat
    desk.notice(f"context: {chat.tokens_in_use()} of {chat.model.context_size} tokens, messages: {len(chat.messages)}")
    summary = chat.summary
    if summary is not None:
        desk.notice(
            f"last reply: prompt {summary.prompt_tokens} tokens ({summary.reused_tokens} reused) "
            f"at {summary.prefill_rate:.0f} tok/s, {summary.new_tokens} new tokens "
            f"at {summary.decode_rate:.1f} tok/s, first token after {summary.first_token_seconds:.2f} s, "
            f"seed {summary.seed}"
        )


def context(desk: Desk, _argument: str) -> None:
    """Show what fills the context."""
    chat = desk.chat
    size, seen = chat.model.context_size, chat.messages[chat.forgotten :]
    used = chat.tokens_in_use()
    lines = [f"{used} of {size} tokens in use, {size - used} left; when full: {chat.overflow}"]
    if chat.forgotten:
        lines.append(f"forgotten: the oldest {chat.forgotten} messages")
    if chat.system:
        lines.append(_line(desk, "system", chat.system))
    lines += [_line(desk, message.role, message.content) for message in seen]
    desk.notice("\n".join(lines))


def _line(desk: Desk, role: str, text: str) -> str:
    count = len(desk.chat.model.encode(text, add_bos=False))
    return f"{count:>6}  {role:<9}  {shorten(text, 50, placeholder='...')}"


def tokens(desk: Desk, argument: str) -> None:
    """Show the tokens of a text."""
    model = desk.chat.model
    ids = model.encode(argument, add_bos=False)
    shown = "  ".join(f"{model.tokenizer.piece(token_id)!r} {token_id}" for token_id in ids[:_SHOWN_TOKENS])
    more = "  ..." if len(ids) > _SHOWN_TOKENS else ""
    desk.notice(f"{len(ids)} tokens: {shown}{more}")


def why(desk: Desk, argument: str) -> None:
    """Show the candidates for the last tokens of the reply."""
    for token in explain_reply(desk.chat, as_count(argument, "/why [N]", "tokens", default=5)):
        best = "  ".join(_share(desk, candidate) for candidate in token.best)
        desk.notice(f"{_share(desk, token.chosen)}  of  {best}")


def _share(desk: Desk, candidate: Candidate) -> str:
    piece = desk.chat.model.tokenizer.piece(candidate.id)
    return f"{piece!r} {100 * math.exp(candidate.logprob):.1f} %"
