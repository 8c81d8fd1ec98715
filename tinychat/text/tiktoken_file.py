"""``tiktoken.model`` files: tokens in base64 with their ranks, made into a ``tokenizer.json``.

A rank is a token's id. There is no list of merges: tiktoken joins those neighbours of a word whose bytes together are
the token of lowest rank, the first of them where there are several, and so on. A token can come of one pair only, the
last two parts of its own bytes joined so; these pairs, in the order of their ranks, are the merges. Tokens whose bytes
end as more parts are only found as whole words.

How text is cut into words and which control tokens there are is said by code that comes with such a file. It never runs
here: what is known of it is in a table.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

from tinychat.errors import TextError
from tinychat.json_file import one_line, read_settings
from tinychat.text.added_tokens import AddedToken
from tinychat.text.split_patterns import KIMI
from tinychat.text.token_spelling import byte_letters
from tinychat.text.tokenizer_settings import TokenizerSettings, read_tokenizer_file, tokenizer_code
from tinychat.text.tokenizers_library import library_calls

TIKTOKEN_FILE, _SETTINGS = "tiktoken.model", "tokenizer_config.json"
# Those of published models have less than four megabytes.
_MAX_FILE_BYTES = 16 << 20
# The sum of the squares of the tokens' lengths, with which the search for their pairs grows; published files have less
# than a fourth of it.
_MAX_WORK = 1 << 26
_MOST_DIGITS = 8
_NOT_JOINED = 1 << 32

# By the modules that come with the files. Those of Moonshot have a number of ids after the ranks, each with a token.
_PATTERNS = {"tokenization_kimi": KIMI, "tokenization_moonshot": KIMI}
_RESERVED = 256
# For folders that name a class without its module.
_CLASS, _MODEL_TYPES = "TikTokenTokenizer", ("deepseek_v3", "kimi_k2", "kimi_linear")


def tiktoken_in(folder: Path) -> Path | None:
    """Return the tiktoken file of a folder that has no other vocabulary; None for other folders."""
    has_other = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    path = folder / TIKTOKEN_FILE
    return None if has_other or not path.is_file() else path


def tokenizer_json(path: Path) -> bytes:
    """Return the ``tokenizer.json`` of a tiktoken file, with the control tokens that the files beside it name.

    `TextError` if the file is damaged, or nothing is known of its kind.
    """
    from tokenizers import AddedToken as BackendToken
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    settings = TokenizerSettings.from_folder(path.parent)
    pattern = _pattern_of(path, settings)
    ranks = _read_ranks(path)
    spelled = {token: byte_letters(token) for token in ranks}
    merges = [(spelled[first], spelled[second]) for first, second in _merges(tuple(ranks))]
    added = _added_tokens(path, len(ranks), settings)
    ids = {spelled[token]: rank for token, rank in ranks.items()} | {token.content: token.id for token in added}
    if len(ids) < len(ranks) + len(added):
        raise TextError(f"{path.parent / _SETTINGS}: two tokens have the same text; fetch the file again")
    with library_calls(str(path)):
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, letters])
        tokenizer.decoder = decoders.ByteLevel()
        for is_special, add in ((True, tokenizer.add_special_tokens), (False, tokenizer.add_tokens)):
            chosen = [token for token in added if token.special is is_special]
            add([BackendToken(t.content, lstrip=t.lstrip, rstrip=t.rstrip, normalized=False) for t in chosen])
        return tokenizer.to_str().encode()


def _pattern_of(path: Path, settings: TokenizerSettings) -> str:
    source = path.parent / _SETTINGS
    name = tokenizer_code(read_settings(source))
    module = name.partition(".")[0]
    if module in _PATTERNS:
        return _PATTERNS[module]
    if not name and settings.tokenizer_class == _CLASS and settings.model_type in _MODEL_TYPES:
        return KIMI
    found = one_line(name or settings.tokenizer_class or "no class is named", 60)
    raise TextError(f"{source}: how {path.name} cuts text is not known ({found}); put a tokenizer.json beside it")


def _added_tokens(path: Path, first: int, settings: TokenizerSettings) -> list[AddedToken]:
    """Return the tokens of the ids after the ranks, those without a name as control tokens."""
    tokens = {i: AddedToken(f"<|reserved_token_{i}|>", i, special=True) for i in range(first, first + _RESERVED)}
    for token in settings.declared_tokens:
        if token.id not in tokens:
            which = f"token {token.id} is none of the {_RESERVED} after the {first} of {path.name}"
            raise TextError(f"{path.parent / _SETTINGS}: added {which}; fetch both files again")
        tokens[token.id] = token
    return list(tokens.values())


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Return the rank of each token, in ascending order."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_tokenizer_file(path, _MAX_FILE_BYTES).splitlines(), 1):
        if line:
            token, rank = _read_line(path, number, line)
            if token in ranks:
                raise _damaged(path, f"line {number} has a token for the second time")
            ranks[token] = rank
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise _damaged(path, "its ranks are not 0, 1, 2 and so on, each once")
    if missing := [value for value in range(256) if bytes([value]) not in ranks]:
        raise _damaged(path, f"{len(missing)} of the 256 single bytes have no token")
    if sum(len(token) ** 2 for token in ranks) > _MAX_WORK:
        raise _damaged(path, "its tokens are too long")
    return dict(sorted(ranks.items(), key=itemgetter(1)))


def _read_line(path: Path, number: int, line: bytes) -> tuple[bytes, int]:
    encoded, _, rank = line.partition(b" ")
    try:
        token = binascii.a2b_base64(encoded, strict_mode=True)
    except binascii.Error:
        token = b""
    if not token or not rank.isdigit() or len(rank) > _MOST_DIGITS:
        raise _damaged(path, f"line {number} is not a token in base64 with its rank")
    return token, int(rank)


def _damaged(path: Path, reason: str) -> TextError:
    return TextError(f"{path}: {reason}; fetch the file again")


# A checkpoint's tokenizer is loaded several times while it is converted, and this takes seconds.
@lru_cache(maxsize=1)
def _merges(tokens: tuple[bytes, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the pair that each token comes of, in the order of `tokens`; none for one that is only a whole word."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    joined = (_joined(token, ranks) for token in tokens)
    return tuple((parts[0], parts[1]) for parts in joined if len(parts) == 2)


def _joined(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Join the bytes of a token as tiktoken does, but for the last two parts."""
    parts = [token[i : i + 1] for i in range(len(token))]
    pairs = [ranks.get(first + second, _NOT_JOINED) for first, second in pairwise(parts)]
    while len(parts) > 2:
        lowest = min(pairs)
        if lowest == _NOT_JOINED:
            break
        i = pairs.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del pairs[i]
        for left in (i - 1, i):
            if 0 <= left < len(pairs):
                pairs[left] = ranks.get(parts[left] + parts[left + 1], _NOT_JOINED)
    return parts
