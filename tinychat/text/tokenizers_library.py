"""The `tokenizers` library, for files that are not trusted.

The library trusts its files: a panic in its Rust code is no `Exception`, a pattern may take for ever on some text, and
some settings make it ask for memory until the process is ended. The last are refused before the library or a text sees
them; the rest is caught, and bounded in time.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from tinychat.errors import TextError, TinychatError
from tinychat.text.tokenizer_settings import read_tokenizer_file
from tinychat.worker_threads import TookTooLongError, run_within

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The largest published file has 33 MiB; the library takes some twenty times as much memory.
_MAX_FILE_BYTES = 48 << 20
MAX_TOKEN_ID = 1 << 24

_SECONDS, _CHARACTERS_PER_SECOND = 2.0, 50_000
_PROBES = ["The quick brown fox, 42 times.", *(letter * 60 + "!?" for letter in "aA0 _.'\n\té日")]

_MAX_GROWTH = 1000
_MAX_POST_PROCESSOR = 16 << 10
_MAX_CHARSMAP_STRING = 256

# Keys of a file in JSON without escapes: an ASCII letter never needs one.
_ESCAPED_LETTER = re.compile(rb"\\u00(?:[2-6][0-9a-fA-F]|7[0-9a-eA-E])")
_SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"(?!")')
_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')


def open_tokenizer(path: Path, limit: int | None = None) -> Tokenizer:
    """Read a ``tokenizer.json``, and try it on some text; one that the library would not survive is a TextError.

    Added tokens from the id `limit` on are left out.
    """
    data = read_tokenizer_file(path, _MAX_FILE_BYTES)
    return parse_tokenizer(data if limit is None else _without_tokens(data, limit, str(path)), str(path))


def _without_tokens(data: bytes, limit: int, source: str) -> bytes:
    try:
        content = json.loads(data)
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < limit]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise TextError(f"{source}: cannot be read (it is no tokenizer.json); fetch the file again") from None
    return json.dumps(content).encode()


def parse_tokenizer(data: bytes, source: str) -> Tokenizer:
    """Parse the content of a ``tokenizer.json`` and try it as `open_tokenizer` does; `source` names it in errors."""
    # The library's threads gain nothing for one text, and it warns where a program forks beside them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    try:
        if _ESCAPED_LETTER.search(data):
            data = json.dumps(json.loads(data), ensure_ascii=False).encode()
        if _SUBWORD_PREFIX.search(data):
            data = _word_pieces(data, source)
    except (ValueError, RecursionError):
        raise TextError(f"{source}: cannot be read (it is no JSON); fetch the file again") from None
    _refuse_what_aborts(data, source)
    with library_calls(source):
        backend: Tokenizer = Tokenizer.from_buffer(data)
        backend.no_truncation()
        backend.no_padding()
        _check_growth(backend, source)
        for text in _PROBES:
            _bounded(partial(_probe, backend, text), _SECONDS, source)
    return backend


def encode(backend: Tokenizer, text: str, source: str, special: bool = False) -> list[int]:
    """Return the ids of a text, with the post-processor's if `special`; a failure or too long a time is a TextError."""
    return encode_many(backend, [text], source, special)[0]


def encode_many(backend: Tokenizer, texts: Sequence[str], source: str, special: bool = False) -> list[list[int]]:
    """Return the ids of texts as `encode` does; all of them have the time of one."""
    # Of the library's ways to encode, those of many texts let other threads run.
    work = partial(backend.encode_batch_fast, texts, add_special_tokens=special)
    with library_calls(source):
        found = _bounded(work, _SECONDS + sum(map(len, texts)) / _CHARACTERS_PER_SECOND, source)
        return [list(encoding.ids) for encoding in found]


@contextmanager
def library_calls(source: str) -> Iterator[None]:
    """Turn any error of the library into a TextError of one line, and hide its own reports from the terminal."""
    try:
        with _SILENT_STDERR:
            yield
    except TinychatError:
        raise
    except BaseException as error:
        # The type of a panic cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:120]
        raise TextError(f"{source}: cannot be read ({reason}); fetch the file again") from error


def state_of(component: Any) -> Any:
    """Return a component of the library's pipeline as plain data; None where there is none."""
    return None if component is None else json.loads(component.__getstate__())


def steps_of(state: Any, children: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a pipeline, and those of a Sequence under the key `children`."""
    if isinstance(state, dict):
        yield state
        for child in state.get(children) or ():
            yield from steps_of(child, children)


class _SilentStderr:
    """Hides what a panic writes to the descriptor itself, before anyone can catch it; threads may enter together."""

    def __init__(self) -> None:
        self._lock, self._users, self._stderr = Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                with suppress(OSError), open(os.devnull, "wb") as null:
                    self._stderr = os.dup(2)
                    os.dup2(null.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._stderr >= 0:
                os.dup2(self._stderr, 2)
                os.close(self._stderr)
                self._stderr = -1


_SILENT_STDERR = _SilentStderr()


def _bounded(work: Callable[[], Any], seconds: float, source: str) -> Any:
    """Run the work, and abandon it if it does not end."""
    try:
        return run_within(seconds, work)
    except TookTooLongError:
        raise TextError(f"{source}: its patterns take too long on a text; use another tokenizer file") from None


def _probe(backend: Tokenizer, text: str) -> None:
    """Encode a text that the file need not know: only a panic counts."""
    with suppress(Exception):
        backend.encode_batch_fast([text])


def _word_pieces(data: bytes, source: str) -> bytes:
    """Return a file with a prefix of tokens inside words, each key once; refuse one that is not of WordPiece.

    Beside merges the library may end the process for a prefix.
    """
    content = json.loads(data)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or model.get("type") != "WordPiece" or "merges" in model:
        raise TextError(f"{source}: a continuing_subword_prefix is supported in WordPiece alone")
    return json.dumps(content, ensure_ascii=False).encode()


def _refuse_what_aborts(data: bytes, source: str) -> None:
    """Find the settings at which the library ends the process while it reads them."""
    for match in _CHARSMAP.finditer(data):
        try:
            charsmap = base64.b64decode(match[1].replace(b"\\/", b"/"), validate=True)
        except binascii.Error:
            charsmap = b""
        trie_end = 4 + int.from_bytes(charsmap[:4], "little")
        longest = max(map(len, charsmap[trie_end:].split(b"\0")))
        if len(charsmap) < 4 or trie_end > len(charsmap) or longest > _MAX_CHARSMAP_STRING:
            raise TextError(f"{source}: its precompiled_charsmap is damaged; fetch the file again")


def _check_growth(backend: Tokenizer, source: str) -> None:
    """Bound the growth of a text by the normalizer, and the size of the post-processor."""
    growth = 1.0
    for step in steps_of(state_of(backend.normalizer), "normalizers"):
        if step["type"] == "Prepend":
            growth += len(step["prepend"])
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String", "")
            content = len(step["content"])
            growth *= max(1.0, content / len(pattern)) if pattern else 1.0 + content
    if growth > _MAX_GROWTH:
        raise TextError(f"{source}: its normalizer makes texts {_MAX_GROWTH} times longer; use another tokenizer file")
    if len(json.dumps(state_of(backend.post_processor))) > _MAX_POST_PROCESSOR:
        raise TextError(f"{source}: its post-processor is too large; use another tokenizer file")
