import unicodedata

import pytest

from tinychat.terminal.safe_text import escaped_text, one_safe_line, safe_text


@pytest.mark.parametrize("text", ["plain\n\ttext", "😀 é 漢字 \u200d", "\u2028", ""])
def test_ordinary_text_is_unchanged(text):
    assert safe_text(text) == text


def test_escape_sequences_become_visible():
    assert safe_text("\x1b[2J\x1b]0;title\x07") == "␛[2J␛]0;title␇"


def test_no_control_character_survives():
    controls = [chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]]
    survivors = [char for char in controls if char in safe_text("".join(controls))]
    assert survivors == ["\t", "\n"]
    assert len(safe_text("".join(controls))) == len(controls)


def test_writing_direction_is_not_changed():
    """U+202E and its like show "gpj.exe" as "exe.jpg"."""
    classes = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    controls = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in classes]
    marks = ["\u061c", "\u200e", "\u200f"]
    assert len(controls) == 9
    assert safe_text("".join([*controls, *marks])) == "\ufffd" * 12
    assert safe_text("שלום مرحبا") == "שלום مرحبا"


def test_a_line_is_one_and_keeps_both_ends():
    line = one_safe_line("begins\n\x1b[2J " + "x " * 3_000_000 + "\tends")
    assert line.startswith("begins ␛[2J x x")
    assert line.endswith("x ends")
    assert 900 < len(line) <= 1000
    assert one_safe_line(" a\n b ") == "a b"
    assert one_safe_line("x" * 1000) == "x" * 1000


def test_what_cannot_be_seen_is_told_by_its_number():
    hidden = "a\x1b[2J\r\u202egpj.exe\u200b\U000e0041\u00a0\udc80"
    assert escaped_text(hidden) == r"a\x1b[2J\r\u202egpj.exe\u200b\U000e0041\xa0\udc80"
    everything = "".join(map(chr, [*range(0x3100), *range(0xD800, 0xFB00), *range(0xE0000, 0xE0100)]))
    assert {char for char in escaped_text(everything) if not char.isprintable()} == {"\n", "\t"}
    assert escaped_text("שלום\n\té 漢字 😀") == "שלום\n\té 漢字 😀"
