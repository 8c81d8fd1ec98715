"""Loading the tokenizer of a folder, of whichever format it has."""

from __future__ import annotations

from pathlib import Path

from tinychat.errors import TextError
from tinychat.text.tiktoken_file import tiktoken_in
from tinychat.text.tokenizer import Tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the first of ``tokenizer.json``, ``tokenizer.model`` and ``tiktoken.model`` that a folder has."""
    if (folder / "tokenizer.json").is_file():
        from tinychat.text.huggingface_tokenizer import load_huggingface

        return load_huggingface(folder)
    if (folder / "tokenizer.model").is_file():
        from tinychat.text.sentencepiece_tokenizer import load_sentencepiece

        return load_sentencepiece(folder)
    if (path := tiktoken_in(folder)) is not None:
        from tinychat.text.huggingface_tokenizer import load_tiktoken

        return load_tiktoken(path)
    expected = "no tokenizer.json, tokenizer.model or tiktoken.model"
    raise TextError(f"{folder}: {expected}; copy one from the checkpoint")
