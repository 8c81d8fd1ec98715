"""The vocabulary of a GGUF file: its tokens, the kind of each, those that have a name, and those that end a reply."""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from tinychat.errors import TextError

# Kinds of tokens; SentencePiece numbers them alike.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
# As many as `tinychat.text` takes: their search would take long to build.
_MAX_ADDED = 20_000
# Tokens that end a turn in one model or another: llama.cpp stops at each of them that a vocabulary has.
TURN_ENDS = frozenset(
    "<|im_end|> <|eot_id|> <|end|> <|return|> <|call|> <|calls|> <|flush|> <|endoftext|> <|end_of_text|> <|eom_id|>"
    " <end_of_turn> <turn|> <|tool_response> <EOT> _<EOT> [EOT] [EOS] <eos> <end_of_utterance> [e~["
    " <\uff5cend\u2581of\u2581sentence\uff5c>".split()
)
# Tokens behind which another file begins in the training of models of code.
FILE_ENDS = frozenset(
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"
    " <|file_sep|>".split()
)
# Of vocabularies that have one of each, gpt-oss's and Solar Open's: only a message ends there, not the turn.
_MESSAGE_END, _REPLY_ENDS, _CALL_ENDS = "<|end|>", {"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"}
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class Vocabulary:
    """Tokens by their ids, the kind of each, and the ids that have a name; values of other shapes raise `TextError`."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata, self.source = metadata, source
        self.tokens = self.texts("tokens")
        if not self.tokens:
            raise TextError(f"{source}: tokenizer.ggml.tokens is empty; give the checkpoint that it was made from")
        kinds = self.numbers("token_type", "iu")
        if kinds is not None and np.isin(kinds, (CONTROL, USER_DEFINED)).sum() > _MAX_ADDED:
            raise self.wrong("token_type", f"of at most {_MAX_ADDED} tokens beside normal ones")
        self.kinds: list[int] = [NORMAL] * len(self.tokens) if kinds is None else kinds.tolist()
        self.named = {name: i for name, key in _NAMED.items() if (i := self.id_at(key)) is not None}

    def of_kind(self, *kinds: int) -> Iterator[int]:
        """Yield the ids of tokens of these kinds."""
        return (i for i, kind in enumerate(self.kinds) if kind in kinds)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, empty where there is none."""
        found = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self.wrong(key, "a list of texts in UTF-8")
        return found

    def numbers(self, key: str, kinds: str) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Return a number for each token, of numpy's `kinds`; None where there are none."""
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        if found is None or (isinstance(found, np.ndarray) and not len(found)):
            return None
        if isinstance(found, np.ndarray) and found.dtype.kind in kinds and len(found) == len(self.tokens):
            return found
        raise self.wrong(key, "a list of a number for each token")

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        found = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(found, bool):
            raise self.wrong(key, "true or false")
        return found

    def raw_bytes(self, key: str) -> bytes:
        """Return a list of bytes, in Ollama's older files of letters of base64; empty where there is none."""
        found = self._metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            with suppress(ValueError):
                return b64decode("".join(found), validate=True)
        if isinstance(found, np.ndarray) and found.dtype.itemsize == 1:
            return found.tobytes()
        if found is None or (isinstance(found, np.ndarray) and len(found) == 0):
            return b""
        raise self.wrong(key, "a list of bytes")

    def generation(self) -> dict[str, Any]:
        """Return the special tokens of ``generation_config.json``."""
        found: dict[str, Any] = {}
        if "bos_token" in self.named:
            found["bos_token_id"] = self.named["bos_token"]
        ends = [self.named.get("eos_token"), self.id_at("eot_token_id"), self.id_at("eom_token_id")]
        known = [i for i in ends if i is not None]
        more = self._metadata.get("tokenizer.ggml.eos_token_ids")
        if isinstance(more, np.ndarray) and more.dtype.kind in "iu":
            known += [i for i in more.tolist() if 0 <= i < len(self.tokens)]
        known += [i for i in self.of_kind(CONTROL, USER_DEFINED) if self.tokens[i] in TURN_ENDS | FILE_ENDS]
        texts = {self.tokens[i] for i in known}
        if texts & _REPLY_ENDS and texts & _CALL_ENDS:
            known = [i for i in known if self.tokens[i] != _MESSAGE_END]
        if known:
            found["eos_token_id"] = [*dict.fromkeys(known)]
        return found

    def wrong(self, key: str, expected: str) -> TextError:
        """Return the error of a value."""
        return TextError(f"{self.source}: tokenizer.ggml.{key} is not {expected}; download the file again")

    def id_at(self, key: str) -> int | None:
        """Return the id of a token that the metadata name; None where they name none."""
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value if type(value) is int and 0 <= value < len(self.tokens) else None
