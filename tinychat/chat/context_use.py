"""How much of the context a conversation takes, whatever else the cache holds."""

from __future__ import annotations

from tinychat.chat.session import Chat
from tinychat.errors import TextError


def context_use(chat: Chat) -> int:
    """Return the tokens of what the model sees of the conversation, as the next prompt will hold them."""
    seen = chat.messages[chat.forgotten :]
    if not seen and not chat.system:
        return 0
    try:
        return len(chat.rendered_ids(seen))
    except TextError:
        # Some templates refuse a system prompt without a message.
        texts = [chat.system or "", *(message.content for message in seen)]
        return sum(len(chat.model.encode(text, add_bos=False)) for text in texts)
