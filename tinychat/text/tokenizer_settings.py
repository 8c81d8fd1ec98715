"""The settings of a tokenizer in the small files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinychat.errors import TextError
from tinychat.files import read_small
from tinychat.json_file import read_settings
from tinychat.text.added_tokens import AddedToken
from tinychat.text.guard import MOST_SPELLINGS, well_formed

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerSettings:
    """tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json, merged; None: not set."""

    tokenizer_class: str  # without the suffix "Fast"; empty if not set, as is the model type
    model_type: str
    special_tokens: dict[str, str]  # "bos_token", "eos_token", ... to their texts
    bos_token_id: int | None  # from config.json, for a folder that names no tokens, as is `eos_token_id`
    eos_token_id: int | None
    declared_tokens: tuple[AddedToken, ...]  # those beyond the vocabulary file, in ascending order of ids
    add_bos_token: bool | None
    add_eos_token: bool | None
    add_prefix_space: bool | None
    legacy: bool | None
    written_ids: int | None  # of the output matrix, if fewer than of the embedding: tokens beyond them are left out

    @classmethod
    def from_folder(cls, folder: Path) -> TokenizerSettings:
        """Read the files of a folder, of which any may be missing."""
        tokenizer_config = read_settings(folder / "tokenizer_config.json")
        config = read_settings(folder / "config.json")
        limit = written_ids(config)
        special = {**read_settings(folder / "special_tokens_map.json"), **tokenizer_config}
        named = {name: _content(special.get(name)) for name in _NAMED_TOKENS}
        special_tokens = {name: content for name, content in named.items() if content}
        return cls(
            tokenizer_class=_text(tokenizer_config.get("tokenizer_class")).removesuffix("Fast"),
            model_type=_text(config.get("model_type")),
            special_tokens=special_tokens,
            bos_token_id=_first_id(config.get("bos_token_id")),
            eos_token_id=_first_id(config.get("eos_token_id")),
            declared_tokens=_declared_tokens(folder, tokenizer_config, special_tokens, limit),
            add_bos_token=_flag(tokenizer_config.get("add_bos_token")),
            add_eos_token=_flag(tokenizer_config.get("add_eos_token")),
            add_prefix_space=_flag(tokenizer_config.get("add_prefix_space")),
            legacy=_flag(tokenizer_config.get("legacy")),
            written_ids=limit,
        )


def read_tokenizer_file(path: Path, limit: int) -> bytes:
    """Read a file of up to `limit` bytes that belongs to a tokenizer; TextError if it cannot be read."""
    try:
        return read_small(path, limit)
    except OSError as error:
        raise TextError(f"{path}: cannot be read ({error.strerror or error}); fetch the file again") from None


def written_ids(config: Mapping[str, object]) -> int | None:
    """Return how many tokens a model can write, where its `config.json` says that its embedding has more."""
    section = config.get("text_config")
    count = (section if isinstance(section, dict) else config).get("output_vocab_size")
    return count if type(count) is int and count > 0 else None


def tokenizer_code(tokenizer_config: Mapping[str, object]) -> str:
    """Return the class that a checkpoint brings for its tokenizer, as "module.Class"; empty where it has none."""
    auto_map = tokenizer_config.get("auto_map")
    named = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else None
    name = named[0] if isinstance(named, list) and named else named
    # Code of another repository has that one's name before its own.
    return _text(name).rpartition("--")[2]


def _declared_tokens(
    folder: Path, tokenizer_config: Mapping[str, object], special_tokens: Mapping[str, str], limit: int | None
) -> tuple[AddedToken, ...]:
    decoder = tokenizer_config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        if limit is not None:
            decoder = {key: token for key, token in decoder.items() if _number(key) < limit}
        source = folder / "tokenizer_config.json"
        if len(decoder) > MOST_SPELLINGS:
            raise TextError(f"{source}: declares more than {MOST_SPELLINGS} added tokens; use another tokenizer")
        tokens = [_declared_token(source, token_id, token) for token_id, token in decoder.items()]
    else:
        source = folder / "added_tokens.json"
        special = set(special_tokens.values()) | _additional_special_tokens(tokenizer_config)
        tokens = [
            _declared_token(source, token_id, {"content": content, "special": content in special})
            for content, token_id in read_settings(source).items()
        ]
    return tuple(sorted(tokens, key=lambda token: token.id))


def _declared_token(source: Path, token_id: object, token: object) -> AddedToken:
    content, number = _content(token), _number(token_id)
    if not isinstance(token, dict) or not content or not 0 <= number < 2**24:
        raise TextError(f"{source}: added token {str(token_id)[:40]!r} is malformed; fetch the file again")
    special, lstrip, rstrip = (token.get(name) is True for name in ("special", "lstrip", "rstrip"))
    return AddedToken(content, number, special, lstrip, rstrip)


def _number(token_id: object) -> int:
    """Return an id that a file may have as text, or -1."""
    try:
        return int(token_id) if isinstance(token_id, str | int) else -1
    except ValueError:
        return -1


def _additional_special_tokens(tokenizer_config: Mapping[str, object]) -> set[str]:
    tokens = tokenizer_config.get("additional_special_tokens") or tokenizer_config.get("extra_special_tokens")
    return {_content(token) for token in tokens} if isinstance(tokens, list) else set()


def _content(token: object) -> str:
    return _text(token.get("content")) if isinstance(token, dict) else _text(token)


def _text(value: object) -> str:
    return well_formed(value) if isinstance(value, str) else ""


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _first_id(value: object) -> int | None:
    if isinstance(value, list) and value:
        value = value[0]
    return value if type(value) is int and value >= 0 else None
