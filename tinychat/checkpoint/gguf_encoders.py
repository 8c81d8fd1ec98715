"""The vocabulary of an encoder in a GGUF file as a ``tokenizer.json``: WordPiece of BERT, Unigram of XLM-RoBERTa.

llama.cpp's converter writes WordPiece's tokens as SentencePiece would: "\u2581" begins a word, instead of "##" inside.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from tinychat.checkpoint.gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary
from tinychat.errors import TextError
from tinychat.json_file import one_line

if TYPE_CHECKING:
    import tokenizers

_BEGIN, _INSIDE = "\u2581", "##"
_BRACKETED = re.compile(r"\[.*\]", re.DOTALL)
# Names of tokens that stand around a text: keys of the metadata, and how BERT spells them.
_FIRST = ("cls_token_id", "bos_token_id"), "[CLS]"
_LAST = ("seperator_token_id", "eos_token_id"), "[SEP]"
_UNKNOWN = ("unknown_token_id",), "[UNK]"


def word_pieces(vocabulary: Vocabulary) -> bytes:
    """Return the ``tokenizer.json`` of BERT's tokens, whose texts are in lower case if no token has another."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    spelled = [_spelled(token) for token in vocabulary.tokens]
    first, last, unknown = (_named(vocabulary, *name) for name in (_FIRST, _LAST, _UNKNOWN))
    ids = {token: i for i, token in reversed(list(enumerate(spelled)))}
    is_lower = not any(token != token.lower() for token in spelled if not _BRACKETED.fullmatch(token))
    with fitting(vocabulary, "tokenizer.ggml.tokens"):
        options = {} if unknown is None else {"unk_token": spelled[unknown]}
        tokenizer = Tokenizer(models.WordPiece(ids, continuing_subword_prefix=_INSIDE, **options))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=is_lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(_INSIDE)
    special = [i for i in (first, last, unknown) if i is not None]
    return finished(tokenizer, vocabulary, (first, last), spelled, special, between=1)


def unigram(vocabulary: Vocabulary) -> bytes:
    """Return the ``tokenizer.json`` of tokens with scores, of which the likeliest spelling of a text is taken."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    scores = vocabulary.numbers("scores", "f")
    if scores is None or not np.isfinite(scores).all():
        raise vocabulary.wrong("scores", "a list of finite numbers")
    unknown = vocabulary.named.get("unk_token", next(vocabulary.of_kind(UNKNOWN), 0))
    charsmap = vocabulary.raw_bytes("precompiled_charsmap")
    with fitting(vocabulary, "tokenizer.ggml.tokens"):
        tokenizer = Tokenizer(models.Unigram([*zip(vocabulary.tokens, scores.tolist())], unknown))
        if charsmap:
            tokenizer.normalizer = normalizers.Precompiled(charsmap)
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    words = pre_tokenizers.Metaspace(replacement=_BEGIN, prepend_scheme=scheme)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    tokenizer.decoder = decoders.Metaspace(replacement=_BEGIN, prepend_scheme=scheme)
    first = vocabulary.named.get("bos_token") if vocabulary.flag("add_bos_token", False) else None
    last = vocabulary.named.get("eos_token") if vocabulary.flag("add_eos_token", True) else None
    return finished(tokenizer, vocabulary, (first, last), between=2)


def _spelled(token: str) -> str:
    """Return a token as BERT's own files spell it."""
    if token.startswith(_BEGIN):
        return token.removeprefix(_BEGIN)
    return token if _BRACKETED.fullmatch(token) else f"{_INSIDE}{token}"


def _named(vocabulary: Vocabulary, keys: tuple[str, ...], spelling: str) -> int | None:
    """Return the id that the metadata name by one of some keys, else that of a spelling."""
    found = (vocabulary.id_at(key) for key in keys)
    known = next((i for i in found if i is not None), None)
    if known is None and spelling in vocabulary.tokens:
        return vocabulary.tokens.index(spelling)
    return known


@contextmanager
def fitting(vocabulary: Vocabulary, what: str) -> Iterator[None]:
    """Turn the library's refusal of a vocabulary into a TextError."""
    try:
        yield
    except Exception as error:
        reason = one_line(str(error), 80)
        raise TextError(f"{vocabulary.source}: {what} do not fit ({reason}); download the file again") from None


def finished(
    tokenizer: tokenizers.Tokenizer,
    vocabulary: Vocabulary,
    around: tuple[int | None, int | None],
    spelled: Sequence[str] = (),
    special: Collection[int] = (),
    between: int = 0,
) -> bytes:
    """Return the file of a tokenizer with its added tokens, and those before and behind a text.

    spelled : the tokens as the file spells them; special : ids that are special beside those that the vocabulary knows;
    between : how many of the tokens behind a text stand between two.
    """
    from tokenizers import AddedToken, processors

    tokens = spelled or vocabulary.tokens
    control = sorted({*vocabulary.of_kind(CONTROL), *special})
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in control])
    tokenizer.add_tokens([AddedToken(tokens[i], normalized=False) for i in vocabulary.of_kind(USER_DEFINED)])
    before, after = ([] if i is None else [tokens[i]] for i in around)
    if before or after:
        named = {tokens[i]: i for i in around if i is not None}
        with fitting(vocabulary, "tokens around a text"):
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *after],
                pair=[*before, "$A", *after * between, "$B:1", *(f"{token}:1" for token in after)],
                special_tokens=[*named.items()],
            )
    return tokenizer.to_str().encode()
