"""Texts that tokenizers get wrong, and a check of their round trip."""

from __future__ import annotations

from tinychat.text.tokenizer import Tokenizer

# Spaces at the ends and in rows, line ends, signs of several code points, normalization, contractions, control tokens.
HARD_TEXTS = (
    "Hello, world!",
    " one space before, two after  ",
    "a     row of spaces\tand\ta tab",
    "line\nline\r\nline\n\n\n",
    "naïve café, Straße, İstanbul",
    "e\u0301 and \u00e9, \ufb01 and fi, \u212b",
    "日本語と中文\uff0c한국어。",
    "עברית, العربية, हिन्दी",
    "🎉👩‍👩‍👧🏽 \U0001d518\U0001d52b\U0001d526",
    "don't I'LL we've 'tis",
    "1234567 3.14 1,000,000 0x1F",
    "def f(x):\n    return x ** 2  # ²\n",
    "<s>[INST] <|im_end|> </s> <unk>",
    "\u3000ideographic\u00a0no-break\u200bzero width",
    "!!!???...---===***###",
)


def changed_texts(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return the hard texts that encoding and decoding changes, each with the result."""
    back = [(text, tokenizer.decode(tokenizer.encode(text))) for text in HARD_TEXTS]
    return [(text, found) for text, found in back if found != text]
