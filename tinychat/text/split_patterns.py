"""Regular expressions that cut a text into words before byte pairs are merged, as the makers of models published them.

Where there are several, each cuts what the ones before left.
"""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_HAN = r"&&[^\p{Han}]]"


def _of_digits(most: str) -> str:
    """Return the pattern of GPT-4 with so many digits in a word."""
    return rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}{most}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"


def _of_cases(upper: str, lower: str, endings: str) -> str:
    """Return the pattern of words that begin in upper case, or are all in upper case."""
    return rf"{_BEFORE}{upper}*{lower}+{endings}|{_BEFORE}{upper}+{lower}*{endings}"


ONE_DIGIT, THREE_DIGITS = _of_digits(""), _of_digits("{1,3}")
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
O200K = rf"{_of_cases(_UPPER, _LOWER, f'{_CONTRACTIONS}?')}|\p{{N}}{{1,3}}{_MARKS}"
TEKKEN = rf"{_of_cases(_UPPER, _LOWER, '')}|\p{{N}}{_MARKS}"
KIMI = (
    rf"[\p{{Han}}]+|{_of_cases(_UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, f'{_CONTRACTIONS}?')}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"
)
# llama.cpp's way where none is named.
UNNAMED = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", UNNAMED[1], r"[0-9][0-9][0-9]")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"  # noqa: RUF001
_CASED, _WIDE = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_V2 = (r"[\r\n]", _CASED, _WIDE, r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+")
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
