"""Text without control characters that a terminal would obey."""

_CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
# They reorder the text around them.
_BIDIRECTIONAL = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
# The C1 controls have no pictures; a terminal may read U+009B as the start of an escape sequence.
_C1_CONTROLS = dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_VISIBLE = {
    code: shown
    for code, shown in (_CONTROL_PICTURES | _C1_CONTROLS | _BIDIRECTIONAL).items()
    if chr(code) not in "\n\t"
}
_LONGEST_LINE = 1000


def safe_text(text: str) -> str:
    """Make the control characters of `text` visible, except newline and tab; writing direction counts as one."""
    return text.translate(_VISIBLE)


def escaped_text(text: str) -> str:
    r"""Return `text` with every character that cannot be seen as its escape, such as ``\u202e``, but newline and tab.

    For what a person decides on: unlike in a reply, spaces of no width and tags hide nothing in it.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def one_safe_line(text: str) -> str:
    """Return `text` as one line of at most 1000 characters; the middle of a longer text is left out."""
    if len(text) > 2 * _LONGEST_LINE:
        text = f"{text[:_LONGEST_LINE]} {text[-_LONGEST_LINE:]}"
    line = safe_text(" ".join(text.split()))
    half = (_LONGEST_LINE - 5) // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"
