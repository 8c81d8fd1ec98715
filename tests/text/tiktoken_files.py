"""Tiktoken files made here, and tiktoken's way to join bytes, written out."""

import base64
import json
from itertools import pairwise

KIMI = "tokenization_kimi.TikTokenTokenizer"
# Bytes do not have their own values as ranks.
BYTES = {bytes([value]): (7 * value + 3) % 256 for value in range(256)}


def ranks_of(*tokens):
    """Return ranks of all single bytes and, after them, of `tokens`."""
    return BYTES | {token.encode(): 256 + i for i, token in enumerate(tokens)}


def file_of(ranks):
    """Return the content of a file."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def write_tiktoken(folder, ranks, names=("[BOS]", "[EOS]", "<|im_end|>"), **settings):
    """Write a folder with a vocabulary in the manner of Kimi; `names` are those of the first ids after the ranks."""
    folder.mkdir(exist_ok=True)
    (folder / "tiktoken.model").write_bytes(file_of(ranks))
    added = {str(len(ranks) + i): {"content": name, "special": True} for i, name in enumerate(names)}
    config = {"tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": [KIMI, None]}}
    config |= {"bos_token": names[0], "eos_token": names[1], "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings))
    return folder


def joined(word, ranks):
    """Return the ids of a word: its own, or those of its bytes after the neighbours of lowest rank were joined."""
    if word in ranks:
        return [ranks[word]]
    parts = [word[i : i + 1] for i in range(len(word))]
    while pairs := [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [ranks[part] for part in parts]
