"""The demo model's tokenizer: byte-level BPE with two-digit numbers, trained on the corpus, and its chat template."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .conversations import Message

PIECES = 2048
END = "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL = (END, *ROLES.values())
NUMBERS, OFTEN = " ".join(map(str, range(100))), 1000
"""Numbers up to 99 shall be pieces, however rare: counting on and sums are then something to know, not to spell."""
REPLY = 24
"""Tokens of a reply up to which each token counts in full."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(conversations: Iterable[Sequence[Message]]) -> Tokenizer:
    """Return a tokenizer of `PIECES` pieces; the same one for the same conversations."""
    tokenizer = Tokenizer(models.BPE())
    # A word takes the space before it along, a number does not: it is the same piece wherever it stands.
    word = Regex(r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(word, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (message["content"] for chat in conversations for message in chat)
    tokenizer.train_from_iterator(chain(texts, repeat(NUMBERS, OFTEN)), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, chat: Sequence[Message]) -> tuple[list[int], list[float]]:
    """Return a conversation's ids, and by how much each counts when it is predicted: only replies do.

    A token of a long reply counts less: otherwise stories would be half of all that is learned.
    """
    ids: list[int] = []
    weights: list[float] = []
    end = tokenizer.token_to_id(END)
    texts = tokenizer.encode_batch([message["content"] for message in chat], add_special_tokens=False)
    for message, text in zip(chat, texts, strict=True):
        turn = [tokenizer.token_to_id(ROLES[message["role"]]), *text.ids, end]
        ids += turn
        weight = min(1.0, (REPLY / len(turn)) ** 0.5) if message["role"] == "assistant" else 0.0
        weights += [0.0] + [weight] * (len(turn) - 1)
    return ids, weights
