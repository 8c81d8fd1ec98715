"""Text that a terminal shows and never obeys."""

_CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
# The C1 controls have no pictures; a terminal may read U+009B as the start of an escape sequence.
_C1_CONTROLS = dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_VISIBLE = {code: shown for code, shown in (_CONTROL_PICTURES | _C1_CONTROLS).items() if chr(code) not in "\n\t"}


def safe_text(text: str) -> str:
    """Return `text` with every control character but newline and tab replaced by a visible one."""
    return text.translate(_VISIBLE)
