"""Endless training batches: fresh conversations, grouped by length so that little is padding."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .conversations import corpus
from .vocabulary import encode

POOL = 1024
LONGEST = 1024
Batch = tuple[Tensor, Tensor, Tensor]
"""Ids, the ids that follow them, and their weights in the loss; each [rows, T]."""


def batches(tokenizer: Tokenizer, seed: int, size: int, start: int = 0) -> Iterator[tuple[int, Batch]]:
    """Yield batches of about `size` tokens, each with the index of the pool's first conversation."""
    conversations = corpus(seed, start)
    while True:
        pool = [encode(tokenizer, chat) for chat in islice(conversations, POOL)]
        pool.sort(key=lambda chat: len(chat[0]))
        rows = list(_rows(pool, size))
        Random(f"{seed}/{start}").shuffle(rows)
        for chats in rows:
            yield start, _padded(chats)
        start += POOL


def _rows(pool: list[tuple[list[int], list[float]]], size: int) -> Iterator[list[tuple[list[int], list[float]]]]:
    first = 0
    for index, (ids, _) in enumerate(pool):
        if index > first and (index - first + 1) * min(len(ids), LONGEST) > size:
            yield pool[first:index]
            first = index
    yield pool[first:]


def _padded(chats: list[tuple[list[int], list[float]]]) -> Batch:
    length = min(max(len(ids) for ids, _ in chats), LONGEST + 1)
    ids = torch.zeros(len(chats), length, dtype=torch.long)
    weights = torch.zeros(len(chats), length)
    for row, (some_ids, some_weights) in enumerate(chats):
        count = min(len(some_ids), length)
        ids[row, :count] = torch.tensor(some_ids[:count])
        weights[row, :count] = torch.tensor(some_weights[:count])
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]
