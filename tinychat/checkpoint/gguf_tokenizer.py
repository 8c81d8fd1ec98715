"""The tokenizer of a GGUF file as the files that a checkpoint folder has.

A vocabulary of the kinds "gpt2" and "gemma4" becomes a ``tokenizer.json``, made by the `tokenizers` library, and so do
those of encoders (`checkpoint.gguf_encoders`); one of the kind "llama" a SentencePiece model. The file has only a name
for how text is cut before merging, which llama.cpp knows (src/llama-vocab.cpp there); the patterns are those of the
models' own files.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinychat.checkpoint.gguf_encoders import finished, fitting, unigram, word_pieces
from tinychat.checkpoint.gguf_vocabulary import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Vocabulary
from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.settings import SETTINGS
from tinychat.text import split_patterns


@dataclass(frozen=True)
class Cutting:
    """How text is cut before merging: by patterns, each cutting what the ones before left, or as GPT-2 does it."""

    patterns: tuple[str, ...] = ()
    digits: bool = False  # single, in GPT-2's way
    whole_words: bool = False  # a word that is a token itself is not merged from its parts
    adds_bos: bool = False
    spelled: bool = False  # tokens are spelled as they are read, spaces as "▁", and bytes where there is none


# By all of llama.cpp's names for it.
_SAME_CUTTING = {
    ("default",): Cutting(split_patterns.UNNAMED),
    ("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "jais", "gigachat", "a.x-4.0", "mellum", "trillion"): Cutting(),
    ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "command-r"): Cutting(digits=True),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "pixtral", "lfm2"): Cutting(
        (split_patterns.THREE_DIGITS,), whole_words=True, adds_bos=True
    ),
    ("smaug-bpe",): Cutting((split_patterns.THREE_DIGITS,), whole_words=True),
    ("dbrx", "chatglm-bpe", "glm4"): Cutting((split_patterns.THREE_DIGITS,)),
    ("jais-2",): Cutting((split_patterns.JAIS2,)),
    ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez", "kormo"): Cutting(
        (split_patterns.ONE_DIGIT,)
    ),
    ("qwen35",): Cutting((split_patterns.QWEN3_5,)),
    ("bailingmoe", "bailingmoe2"): Cutting((split_patterns.BAILING,)),
    ("seed-coder",): Cutting((split_patterns.SEED,)),
    ("laguna",): Cutting((r"[^\n]+|\n+", split_patterns.ONE_DIGIT)),
    ("gpt-4o", "llama4", "minimax-m2"): Cutting((split_patterns.O200K,)),
    ("tiny_aya",): Cutting(split_patterns.TINY_AYA),
    ("tekken",): Cutting((split_patterns.TEKKEN,), whole_words=True, adds_bos=True),
    ("falcon",): Cutting(split_patterns.FALCON),
    ("bloom",): Cutting((split_patterns.BLOOM,)),
    ("exaone-moe",): Cutting((split_patterns.EXAONE_MOE,)),
    ("youtu",): Cutting(split_patterns.YOUTU, whole_words=True),
    ("afmoe",): Cutting(split_patterns.AFMOE),
    ("deepseek-llm",): Cutting(split_patterns.DEEPSEEK_V2),
    ("deepseek-coder",): Cutting(split_patterns.DEEPSEEK_CODER),
    ("deepseek-v3", "hunyuan-dense"): Cutting(split_patterns.DEEPSEEK_V3),
    # llama.cpp's own way is coarser: it does not cut between a lower and an upper case letter.
    ("kimi-k2",): Cutting((split_patterns.KIMI,), whole_words=True),
}
# The cutting of another kind of vocabulary than "gpt2", for which no name is given.
_GEMMA4 = Cutting((r"[^\n]+|\n+",), adds_bos=True, spelled=True)
# Kinds of vocabularies of encoders.
ENCODERS = {"bert": word_pieces, "t5": unigram}
PRE_TOKENIZERS = {name: cutting for names, cutting in _SAME_CUTTING.items() for name in names}


def tokenizer_files(metadata: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the content of ``generation_config.json``, and the tokenizer's files by their names."""
    vocabulary = Vocabulary(metadata, source)
    kind = str(metadata.get("tokenizer.ggml.model"))
    if kind in ("gpt2", "gemma4"):
        name = metadata.get("tokenizer.ggml.pre", "default")
        if kind == "gpt2" and (not isinstance(name, str) or name not in PRE_TOKENIZERS):
            what = f"tokenizer.ggml.pre is {one_line(str(name), 40)!r}, which is not supported"
            raise UnsupportedModelError(f"{source}: {what}; give the checkpoint that the file was made from")
        cutting = PRE_TOKENIZERS[name] if kind == "gpt2" else _GEMMA4
        # Files of Gemma 4 say that they do not, and are wrong: llama.cpp knows better, too.
        adds_bos = cutting.spelled or vocabulary.flag("add_bos_token", cutting.adds_bos)
        ends = [("bos_token", adds_bos), ("eos_token", vocabulary.flag("add_eos_token", False))]
        around = [vocabulary.named.get(token) if adds else None for token, adds in ends]
        files = {"tokenizer.json": _byte_level(vocabulary, cutting, *around)}
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": adds_bos}
    elif kind == "llama":
        files = {"tokenizer.model": _sentencepiece(vocabulary)}
        settings = {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": vocabulary.flag("add_bos_token", True),
            "add_eos_token": vocabulary.flag("add_eos_token", False),
            "legacy": False,
            "added_tokens_decoder": {
                str(i): {"content": vocabulary.tokens[i], "special": vocabulary.kinds[i] == CONTROL}
                for i in vocabulary.of_kind(CONTROL, USER_DEFINED)
            },
        }
    elif kind in ENCODERS:
        files = {"tokenizer.json": ENCODERS[kind](vocabulary)}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    else:
        what = f"tokenizer.ggml.model is {one_line(kind, 40)!r}, which is not supported"
        raise UnsupportedModelError(f"{source}: {what}; supported are gpt2, gemma4, llama, {' and '.join(ENCODERS)}")
    settings |= {name: vocabulary.tokens[i] for name, i in vocabulary.named.items()}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    return vocabulary.generation() | sampling_of(metadata), files


def sampling_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the file's advice for sampling (llama.cpp, gguf-py, constants.py), by transformers' keys."""
    rows = [row for row in SETTINGS.values() if row.gguf]
    found = {row.huggingface: metadata.get(f"general.sampling.{row.gguf}") for row in rows}
    # They are stored in float32, which is not quite what their author wrote.
    return {key: round(value, 6) for key, value in found.items() if isinstance(value, int | float)}


def _byte_level(vocabulary: Vocabulary, cutting: Cutting, first: int | None, last: int | None) -> bytes:
    """Return a ``tokenizer.json`` for tokens that merges make, with ids put around a text.

    They are spelled in the letters of bytes, unless `cutting` says otherwise.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = vocabulary.texts("merges")
    if not all(each.count(" ") == 1 for each in merges):
        raise vocabulary.wrong("merges", "a list of two parts with a space between")
    pairs = [(first, second) for first, second in (each.split(" ") for each in merges)]
    ids = {token: i for i, token in reversed(list(enumerate(vocabulary.tokens)))}
    with fitting(vocabulary, "tokenizer.ggml.merges"):
        options = {"unk_token": vocabulary.tokens[next(vocabulary.of_kind(UNKNOWN), 0)]} if cutting.spelled else {}
        tokenizer = Tokenizer(
            models.BPE(
                vocab=ids,
                merges=pairs,
                ignore_merges=cutting.whole_words,
                byte_fallback=cutting.spelled,
                fuse_unk=cutting.spelled,
                **options,
            )
        )
    if cutting.patterns:
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in cutting.patterns]
        letters = [] if cutting.spelled else [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        steps = [*cuts, *letters]
    else:
        steps = [pre_tokenizers.Digits(individual_digits=True)] if cutting.digits else []
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if cutting.spelled:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return finished(tokenizer, vocabulary, (first, last), between=1)


def _sentencepiece(vocabulary: Vocabulary) -> bytes:
    """Return a SentencePiece model (sentencepiece_model.proto of github.com/google/sentencepiece), as its bytes."""
    count = len(vocabulary.tokens)
    found = vocabulary.numbers("scores", "f")
    with np.errstate(over="ignore"):
        scores = np.asarray(-np.arange(count) if found is None else found, np.float32)
    if not np.isfinite(scores).all():
        raise vocabulary.wrong("scores", "a list of finite numbers")
    pieces = []
    for token, score, kind in zip(vocabulary.tokens, scores.tolist(), vocabulary.kinds):
        piece = _bytes_field(1, token.encode()) + b"\x15" + struct.pack("<f", score) + _number_field(3, kind)
        pieces.append(_bytes_field(1, piece))
    unknown = vocabulary.named.get("unk_token", next(vocabulary.of_kind(UNKNOWN), 0))
    ids = [unknown, *(vocabulary.named.get(f"{name}_token", -1) for name in ("bos", "eos", "pad"))]
    # Byte pairs; where there are bytes, they spell what has no token.
    trainer = _number_field(3, 2) + _number_field(4, count) + _number_field(35, BYTE in vocabulary.kinds)
    trainer += b"".join(_number_field(40 + i, number) for i, number in enumerate(ids))
    for i, number in enumerate(ids[:3]):
        if number >= 0:
            trainer += _bytes_field(45 + i, vocabulary.tokens[number].encode())
    # llama.cpp reads no precompiled_charsmap for this kind of vocabulary.
    normalizer = _bytes_field(1, b"identity")
    normalizer += _number_field(3, vocabulary.flag("add_space_prefix", True))
    normalizer += _number_field(4, vocabulary.flag("remove_extra_whitespaces", False))
    normalizer += _number_field(5, True)
    return b"".join(pieces) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def _number_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number & (1 << 64) - 1)


def _bytes_field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number in protobuf's encoding: seven bits a byte, the lowest first."""
    parts = []
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
