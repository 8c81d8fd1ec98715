"""Commands that show the context, tokens and probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from textwrap import shorten

from tinychat.chat.command import as_count
from tinychat.chat.loop import ChatLoop
from tinychat.conversation.attachments import image_tokens
from tinychat.conversation.contents import PlacedImage, SavedImage
from tinychat.conversation.conversation import Chat
from tinychat.conversation.overflow import how_full
from tinychat.errors import SettingError, TextError
from tinychat.generate.logprobs import ScoredToken, TokenLogprobs, token_logprobs
from tinychat.generate.model import Model
from tinychat.generate.reply import Summary
from tinychat.terminal.status_line import summary_line
from tinychat.terminal.wrapping import NO_BREAK_SPACE

_SHOWN_TOKENS = 200
_CANDIDATES = 5


def stats(loop: ChatLoop, _argument: str) -> None:
    """Show context use and the rates of the last reply."""
    chat = loop.chat
    use = how_full(chat.tokens_in_use(), chat.model.context_size)
    loop.notice(f"context: {use}; messages: {len(chat.messages)}")
    summary = chat.summary
    if summary is not None:
        loop.notice(f"last reply: {summary_line(summary)}, seed {summary.seed}{_drafts(summary)}")


def _drafts(summary: Summary) -> str:
    if not summary.drafted_tokens:
        return ""
    return f", drafts: {summary.accepted_tokens} of {summary.drafted_tokens} tokens accepted"


def context(loop: ChatLoop, _argument: str) -> None:
    """Show what fills the context."""
    chat = loop.chat
    seen = chat.messages[chat.dropped :]
    lines = [f"{how_full(chat.tokens_in_use(), chat.model.context_size)}; when full: {chat.overflow}"]
    if chat.dropped:
        lines.append(f"dropped: the oldest {chat.dropped} messages")
    if chat.miss is not None:
        lines.append(str(chat.miss))
    tools = loop.shelf.tokens()
    if tools:
        lines.append(f"{tools:>6}  tools      {', '.join(loop.shelf.on)}")
    texts = [("system", chat.system)] if chat.system else []
    seen_images = [message for message in seen if message.has_images and chat.model.sees_images]
    texts += [
        (message.role, message.content if message in seen_images else message.shortened or message.text)
        for message in seen
    ]
    if texts:
        images = [placed for message in seen_images for placed in message.images]
        rows = _rows(chat, texts, images, chat.tokens_in_use() - tools)
        lines += [f"{count:>6}  {name:<9}  {shorten(text, 50, placeholder='...')}" for count, name, text in rows]
    if chat.model.runs_here:
        sequence = chat.model.sequence
        states = f", states {sequence.state_bytes / 1e6:.1f} MB" if sequence.state_bytes else ""
        lines.append(f"memory: keys and values {sequence.cache_bytes / 1e6:.1f} MB{states}")
    loop.notice("\n".join(lines))


def _rows(
    chat: Chat, texts: Sequence[tuple[str, str]], images: Sequence[PlacedImage], left: int
) -> Iterator[tuple[int, str, str]]:
    """Yield count, name and text of the parts that have `left` tokens: texts, images, and the template around them."""
    model = chat.model
    beginning = _beginning(chat, texts[0][1])
    counted = [(len(model.tokenizer.encode_rendered(beginning)), "template", beginning)]
    counted += [(len(model.encode(text, add_bos=False)), role, text) for role, text in texts]
    counted += [
        (image_tokens(model, placed.image), "image", placed.image.name)
        for placed in images
        if not isinstance(placed.image, SavedImage)
    ]
    left -= sum(count for count, _, _ in counted)
    yield from counted
    if left > 0:
        yield left, "template", "the chat template between messages"
    elif left < 0:
        yield left, "template", "dropped by the chat template, such as thinking"


def _beginning(chat: Chat, first: str) -> str:
    """Return the template's text before the `first` text, often a system prompt of its own."""
    system = [{"role": "system", "content": chat.system}] if chat.system else []
    seen = [message.as_seen(chat.model.sees_images) for message in chat.messages[chat.dropped :]]
    try:
        before, found, _ = chat.model.render([*system, *seen]).partition(first.strip())
    except TextError:
        return ""
    return before if found else ""


def tokens(loop: ChatLoop, argument: str) -> None:
    """Show the tokens of a text."""
    model = loop.chat.model
    ids = model.encode(argument, add_bos=False)
    shown = "  ".join(f"{_spelled(model, token_id)} {token_id}" for token_id in ids[:_SHOWN_TOKENS])
    more = "  ..." if len(ids) > _SHOWN_TOKENS else ""
    loop.notice(f"{len(ids)} tokens: {shown}{more}")


def why(loop: ChatLoop, argument: str) -> None:
    """Show the candidates for the last tokens of the reply."""
    for token in explain_reply(loop.chat, as_count(argument, "/why [N]", default=5)):
        best = "  ".join(_share(loop, candidate) for candidate in token.best)
        loop.notice(f"{_share(loop, token.chosen)}  of  {best}")


def _share(loop: ChatLoop, candidate: ScoredToken) -> str:
    share = f"{_spelled(loop.chat.model, candidate.id)} {100 * math.exp(candidate.logprob):.1f} %"
    return share.replace(" ", NO_BREAK_SPACE)


def _spelled(model: Model, token_id: int) -> str:
    """Return a token's text in quotation marks; bytes of an incomplete character in hexadecimal."""
    tokenizer = model.tokenizer
    if token_id in tokenizer.special_ids:
        return repr(tokenizer.piece(token_id))
    data = tokenizer.token_bytes(token_id)
    try:
        return repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        return f"'{data.decode('utf-8', 'backslashreplace')}'"


def explain_reply(chat: Chat, count: int) -> Iterator[TokenLogprobs]:
    """Yield the candidates for the last `count` tokens of the last reply, which run again.

    The cache then holds the conversation up to the last token but one.
    """
    if not chat.messages or chat.messages[-1].role != "assistant":
        raise SettingError("no reply to explain yet: send a message first")
    reply = chat.messages[-1]
    reply_ids = chat.reply_ids or chat.model.tokenizer.encode_reply(reply.content)
    prompt_ids = chat.prompt(chat.messages[chat.dropped : -1]).ids
    count = min(count, len(reply_ids))
    ids = [*prompt_ids, *reply_ids[: len(reply_ids) - count]]
    for token_id in reply_ids[len(reply_ids) - count :]:
        # Only the last token of each prefill runs: the cache holds the rest.
        yield token_logprobs(chat.model.next_logits(ids), token_id, _CANDIDATES)
        ids.append(token_id)
