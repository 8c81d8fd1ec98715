"""Regular expressions that cut a text into words before byte pairs are merged, as the makers of models published them.

Where there are several, each cuts what the ones before left.
"""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_HAN = r"&&[^\p{Han}]]"


def _of_words(digits: str, letter: str = r"\p{L}", after: str = r"[\r\n]*", spaces: str = _SPACES) -> str:
    """Return the pattern of GPT-4 with so many digits in a word; `after` are line ends behind signs."""
    signs = rf" ?[^\s{letter.strip('[]')}\p{{N}}]+{after}"
    return rf"{_CONTRACTIONS}|{_BEFORE}{letter}+|\p{{N}}{digits}|{signs}{spaces}"


def _of_cases(upper: str, lower: str, endings: str) -> str:
    """Return the pattern of words that begin in upper case, or are all in upper case."""
    return rf"{_BEFORE}{upper}*{lower}+{endings}|{_BEFORE}{upper}+{lower}*{endings}"


ONE_DIGIT, THREE_DIGITS = _of_words(""), _of_words("{1,3}")
QWEN3_5 = _of_words("", letter=r"[\p{L}\p{M}]")
BAILING = _of_words("", spaces=_SPACES.replace("[\\r\\n]+", "[\\r\\n]"))
SEED = _of_words("", after="")
# Runs of spaces by powers of two.
JAIS2 = _of_words(
    "{1,3}", spaces=r"|\s*[\r\n]+" + "".join(rf"|\s{{{2**i}}}(?!\S)" for i in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s"
)
# A word goes on behind a space.
EXAONE_MOE = (
    rf"{_CONTRACTIONS}|{_BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
O200K = rf"{_of_cases(_UPPER, _LOWER, f'{_CONTRACTIONS}?')}|\p{{N}}{{1,3}}{_MARKS}"
# Numbers are cut from their end, three digits at a time.
TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", O200K)
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
# Letters of mathematics have no case.
_CASED = "\\s?[[\\p{Lu}\\p{Ll}\\p{Lt}]&&[^\U0001d400-\U0001d7ff]]+"
_WIDE = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_V2 = (r"[\r\n]", _CASED, _WIDE, r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+")
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_V2[4], r"\p{N}")
_SIGNS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES
_KANA = "\u3040-\u309f\u30a0-\u30ff"
DEEPSEEK_V3 = (r"\p{N}{1,3}", f"[\u4e00-\u9fa5{_KANA}]+", _SIGNS)
AFMOE = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    f"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff{_KANA}\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff"
    "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    _SIGNS,
)
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    f"\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5{_KANA}]+",
    rf"{_of_cases(_UPPER, _LOWER, f'{_CONTRACTIONS}?')}|\p{{N}}{_MARKS}",
)
