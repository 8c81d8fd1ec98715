"""The tokenizer of a GGUF file as the files that a checkpoint folder has.

A vocabulary of the kind "gpt2" becomes a ``tokenizer.json``, made by the `tokenizers` library; one of the kind "llama"
a SentencePiece model. How text is cut before merging stands in neither, only the name of a way that llama.cpp knows
(src/llama-vocab.cpp there); the patterns are those of the models' own files.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinychat.errors import TextError, UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.settings import SETTINGS

# Kinds of tokens; SentencePiece numbers them alike.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
# As many as `tinychat.text` takes: their search would take long to build.
_MAX_ADDED = 20_000
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS, _ONE_DIGIT = _SPLIT.format(numbers="{1,3}"), _SPLIT.format(numbers="")
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}"
    rf"|\p{{N}}{{1,3}}{_REST}"
)
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
# What llama.cpp does where no way is named.
_UNNAMED = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _UNNAMED[1], r"[0-9][0-9][0-9]")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"  # noqa: RUF001


@dataclass(frozen=True)
class Cutting:
    """How text is cut before merging: by patterns, each cutting what the ones before left, or as GPT-2 does it.

    `digits` says that digits stand on their own in GPT-2's way, `whole_words` that a word that is a token itself is not
    merged from its parts.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    whole_words: bool = False
    adds_bos: bool = False


# By all of llama.cpp's names for it.
_SAME_CUTTING = {
    ("default",): Cutting(_UNNAMED),
    ("gpt-2", "phi-2", "mpt", "olmo", "exaone4"): Cutting(),
    ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"): Cutting(digits=True),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"): Cutting(
        (_THREE_DIGITS,), whole_words=True, adds_bos=True
    ),
    ("smaug-bpe",): Cutting((_THREE_DIGITS,), whole_words=True),
    ("dbrx", "chatglm-bpe", "glm4"): Cutting((_THREE_DIGITS,)),
    ("qwen2", "deepseek-r1-qwen", "stablelm2"): Cutting((_ONE_DIGIT,)),
    ("gpt-4o",): Cutting((_O200K,)),
    ("tekken",): Cutting((_TEKKEN,), whole_words=True, adds_bos=True),
    ("falcon",): Cutting(_FALCON),
    ("bloom",): Cutting((_BLOOM,)),
}
PRE_TOKENIZERS = {name: cutting for names, cutting in _SAME_CUTTING.items() for name in names}
# Tokens that end a turn in one model or another: llama.cpp stops at each of them that a vocabulary has.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>")
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer_files(metadata: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return what ``generation_config.json`` would say, and the tokenizer's files by their names.

    Raises
    ------
    UnsupportedModelError
        If the vocabulary's kind, or how it cuts text, is not known.
    TextError
        If it is damaged.
    """
    vocabulary = Vocabulary.of(metadata, source)
    kind = metadata.get("tokenizer.ggml.model")
    kind = kind if isinstance(kind, str) else str(kind)
    if kind == "gpt2":
        name = metadata.get("tokenizer.ggml.pre", "default")
        if not isinstance(name, str) or name not in PRE_TOKENIZERS:
            raise UnsupportedModelError(
                f"{source}: tokenizer.ggml.pre is {one_line(str(name), 40)!r}, which is not supported;"
                " give the checkpoint that the file was made from"
            )
        cutting = PRE_TOKENIZERS[name]
        adds_bos = _flag(metadata, "add_bos_token", cutting.adds_bos, source)
        files = {"tokenizer.json": _byte_level(vocabulary, metadata, cutting, adds_bos, source)}
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": adds_bos}
    elif kind == "llama":
        files = {"tokenizer.model": _sentencepiece(vocabulary, metadata, source)}
        settings = {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": _flag(metadata, "add_bos_token", True, source),
            "legacy": False,
            "added_tokens_decoder": {
                str(i): {"content": vocabulary.tokens[i], "special": vocabulary.kinds[i] == CONTROL}
                for i in vocabulary.of_kind(CONTROL, USER_DEFINED)
            },
        }
    else:
        raise UnsupportedModelError(
            f"{source}: tokenizer.ggml.model is {one_line(str(kind), 40)!r}, which is not supported;"
            " supported are gpt2 and llama"
        )
    settings |= {name: vocabulary.tokens[i] for name, i in vocabulary.named.items()}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    return _generation(vocabulary) | sampling_of(metadata), files


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by their ids, the kind of each, and the ids that have a name."""

    tokens: list[str]
    kinds: list[int]
    named: dict[str, int]
    turn_end: int | None

    @classmethod
    def of(cls, metadata: Mapping[str, Any], source: str) -> "Vocabulary":
        """Take it out of the metadata.

        Raises
        ------
        TextError
        """
        tokens = _texts(metadata, "tokens", source)
        if not tokens:
            raise TextError(f"{source}: tokenizer.ggml.tokens is empty; give the checkpoint that it was made from")
        kinds = _numbers(metadata, "token_type", "iu", len(tokens), source)

        def known(name: str) -> int | None:
            value = metadata.get(f"tokenizer.ggml.{name}")
            return value if type(value) is int and 0 <= value < len(tokens) else None

        named = {name: i for name, key in _NAMED.items() if (i := known(key)) is not None}
        if kinds is not None and np.isin(kinds, (CONTROL, USER_DEFINED)).sum() > _MAX_ADDED:
            raise _wrong("token_type", f"of at most {_MAX_ADDED} tokens beside normal ones", source)
        every_kind = [NORMAL] * len(tokens) if kinds is None else kinds.tolist()
        return cls(tokens, every_kind, named, known("eot_token_id"))

    def of_kind(self, *kinds: int) -> Iterator[int]:
        """Yield the ids of tokens of these kinds."""
        return (i for i, kind in enumerate(self.kinds) if kind in kinds)


def _texts(metadata: Mapping[str, Any], key: str, source: str) -> list[str]:
    """Return a list of texts, empty where there is none."""
    found = metadata.get(f"tokenizer.ggml.{key}", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _wrong(key, "a list of texts in UTF-8", source)
    return found


def _numbers(
    metadata: Mapping[str, Any], key: str, kinds: str, count: int, source: str
) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Return a number for each token, of numpy's `kinds`; None where there are none."""
    found = metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(found, np.ndarray) and not len(found):
        found = None
    if found is None or (isinstance(found, np.ndarray) and found.dtype.kind in kinds and len(found) == count):
        return found
    raise _wrong(key, "a list of a number for each token", source)


def _flag(metadata: Mapping[str, Any], key: str, default: bool, source: str) -> bool:
    found = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(found, bool):
        raise _wrong(key, "true or false", source)
    return found


def _wrong(key: str, expected: str, source: str) -> TextError:
    return TextError(f"{source}: tokenizer.ggml.{key} is not {expected}; download the file again")


def _generation(vocabulary: Vocabulary) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "bos_token" in vocabulary.named:
        found["bos_token_id"] = vocabulary.named["bos_token"]
    ends = [i for i in (vocabulary.named.get("eos_token"), vocabulary.turn_end) if i is not None]
    ends += [i for i in vocabulary.of_kind(CONTROL) if vocabulary.tokens[i] in TURN_ENDS]
    if ends:
        found["eos_token_id"] = list(dict.fromkeys(ends))
    return found


def sampling_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return what the file advises for sampling (llama.cpp, gguf-py, constants.py), by transformers' keys."""
    rows = [row for row in SETTINGS.values() if row.gguf]
    found = {row.huggingface: metadata.get(f"general.sampling.{row.gguf}") for row in rows}
    # They are kept in float32, which is not quite what their author wrote.
    return {key: round(value, 6) for key, value in found.items() if isinstance(value, int | float)}


def _byte_level(
    vocabulary: Vocabulary, metadata: Mapping[str, Any], cutting: Cutting, adds_bos: bool, source: str
) -> bytes:
    """Return a ``tokenizer.json`` for tokens that are spelled in the letters of bytes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    merges = _texts(metadata, "merges", source)
    if not all(each.count(" ") == 1 for each in merges):
        raise _wrong("merges", "a list of two parts with a space between", source)
    pairs = [(first, second) for first, second in (each.split(" ") for each in merges)]
    numbers = {token: i for i, token in reversed(list(enumerate(vocabulary.tokens)))}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=pairs, ignore_merges=cutting.whole_words))
    except Exception as error:
        reason = one_line(str(error), 80)
        raise TextError(f"{source}: tokenizer.ggml.merges do not fit ({reason}); download the file again") from None
    if cutting.patterns:
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in cutting.patterns]
        steps = [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        steps = [pre_tokenizers.Digits(individual_digits=True)] if cutting.digits else []
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    control, user_defined = ([vocabulary.tokens[i] for i in vocabulary.of_kind(k)] for k in (CONTROL, USER_DEFINED))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    bos = vocabulary.named.get("bos_token")
    if adds_bos and bos is not None:
        spelled = vocabulary.tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[spelled, "$A"], pair=[spelled, "$A", "$B"], special_tokens=[(spelled, bos)]
        )
    return tokenizer.to_str().encode()


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any], source: str) -> bytes:
    """Return a SentencePiece model (sentencepiece_model.proto of github.com/google/sentencepiece), as its bytes."""
    count = len(vocabulary.tokens)
    found = _numbers(metadata, "scores", "f", count, source)
    with np.errstate(over="ignore"):
        scores = np.asarray(-np.arange(count) if found is None else found, np.float32)
    if not np.isfinite(scores).all():
        raise _wrong("scores", "a list of finite numbers", source)
    pieces = []
    for token, score, kind in zip(vocabulary.tokens, scores.tolist(), vocabulary.kinds):
        piece = _bytes_field(1, token.encode()) + b"\x15" + struct.pack("<f", score) + _number_field(3, kind)
        pieces.append(_bytes_field(1, piece))
    unknown = vocabulary.named.get("unk_token", next(vocabulary.of_kind(UNKNOWN), 0))
    ids = {
        40: unknown,
        41: vocabulary.named.get("bos_token", -1),
        42: vocabulary.named.get("eos_token", -1),
        43: vocabulary.named.get("pad_token", -1),
    }
    # Byte pairs; where there are bytes, they stand for what has no token.
    trainer = _number_field(3, 2) + _number_field(4, count) + _number_field(35, BYTE in vocabulary.kinds)
    trainer += b"".join(_number_field(field, number) for field, number in ids.items())
    for field, number in ((45, ids[40]), (46, ids[41]), (47, ids[42])):
        if number >= 0:
            trainer += _bytes_field(field, vocabulary.tokens[number].encode())
    # llama.cpp reads no precompiled_charsmap for this kind of vocabulary.
    normalizer = _bytes_field(1, b"identity")
    normalizer += _number_field(3, _flag(metadata, "add_space_prefix", True, source))
    normalizer += _number_field(4, _flag(metadata, "remove_extra_whitespaces", False, source))
    normalizer += _number_field(5, True)
    return b"".join(pieces) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def _number_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number & (1 << 64) - 1)


def _bytes_field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    parts = []
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
