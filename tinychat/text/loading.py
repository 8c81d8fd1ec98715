"""Loading the tokenizer of a folder, of whichever format it has."""

from __future__ import annotations

from pathlib import Path

from tinychat.errors import TextError
from tinychat.text.tokenizer import Tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint or model folder: ``tokenizer.json`` (preferred) or ``tokenizer.model``."""
    if (folder / "tokenizer.json").is_file():
        from tinychat.text.huggingface_tokenizer import load_huggingface

        return load_huggingface(folder)
    if (folder / "tokenizer.model").is_file():
        from tinychat.text.sentencepiece_tokenizer import load_sentencepiece

        return load_sentencepiece(folder)
    raise TextError(f"{folder}: neither tokenizer.json nor tokenizer.model; copy one from the checkpoint")
