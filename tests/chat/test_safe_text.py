import pytest

from tinychat.chat.safe_text import safe_text


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
