"""Why a reply reads as it does: what the model thought of each token and of the others."""

from __future__ import annotations

from collections.abc import Iterator

from tinychat.chat.session import Chat
from tinychat.errors import SettingError
from tinychat.generate.logprobs import TokenLogprobs, token_logprobs
from tinychat.generate.loop import prefill

_CANDIDATES = 5


def explain_reply(chat: Chat, count: int) -> Iterator[TokenLogprobs]:
    """Run the last `count` tokens of the last reply again, and look at the model's choices.

    The cache afterwards holds the conversation up to the last token but one.

    Raises
    ------
    SettingError
        If there is no reply.
    ContextError
        If prompt and reply together do not fit into the context.
    """
    if not chat.messages:
        raise SettingError("there is no reply yet that could be explained: send a message first")
    reply = chat.messages[-1]
    reply_ids = chat.reply_ids or chat.model.encode(reply.content, add_bos=False)
    prompt_ids = chat.prompt(chat.messages[chat.forgotten : -1]).ids
    count = min(count, len(reply_ids))
    ids = [*prompt_ids, *reply_ids[: len(reply_ids) - count]]
    for token_id in reply_ids[len(reply_ids) - count :]:
        # Of each prefill only the last token runs: the cache holds the rest.
        logits, _ = prefill(chat.model.sequence, ids)
        assert logits is not None  # only a cancelled prefill gives none
        yield token_logprobs(logits, token_id, _CANDIDATES)
        ids.append(token_id)
