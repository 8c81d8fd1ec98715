import pytest
from rich.cells import cell_len

from tinychat.terminal.wrapping import WordWrap, wrapped


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("one two 3", ["one two 3"]),
        ("one\ntwo", ["one", "two"]),
        ("  indented words", ["  indented", "words"]),
        ("unbelievably", ["unbelievably"]),
        ("so unbelievably long", ["so", "unbelievably long"]),
        ("/a  does this", ["/a  does", "    this"]),
        ("ab  cd  efg hij", ["ab  cd", "    efg", "    hij"]),
        ("one 12\u00a0% two", ["one 12\u00a0%", "two"]),
        ("漢字漢字漢字", ["漢字漢字漢", "字"]),
        ("漢字, see 漢字", ["漢字, see", "漢字"]),
        ("emoji: 👩\u200d🚀👩\u200d🚀", ["emoji: 👩\u200d🚀", "👩\u200d🚀"]),
        ("❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f", ["❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f", "❤\ufe0f"]),
        ("", [""]),
    ],
)
def test_lines_end_between_words(text, lines):
    assert wrapped(text, 10).split("\n") == lines


def test_a_text_that_grows_is_broken_in_the_same_places():
    text = "a text with 漢字 and words that is long enough\nto be  broken several times, at any width"
    for width in range(8, 40):
        wrap = WordWrap(lambda width=width: width)
        whole = wrap.feed(text) + wrap.finish()
        other = WordWrap(lambda width=width: width)
        assert "".join([*map(other.feed, text), other.finish()]) == whole
        assert max(map(cell_len, whole.split("\n"))) <= width
        assert "".join(whole.split()) == "".join(text.split())
        assert {"several", "enough", "times,"} <= {*whole.split()}


def test_a_width_that_changes_counts_from_the_next_word():
    widths = iter([80, 80, 7, 7])
    wrap = WordWrap(lambda: next(widths))
    assert wrap.feed("one two three four ") == "one two\nthree\nfour"
