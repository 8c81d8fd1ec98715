import pytest

from tinychat.terminal.blocks import Blocks


def cut(text, size=1):
    """Return the finished blocks and the open rest of a text that comes in pieces of `size` characters."""
    blocks = Blocks()
    finished = []
    for start in range(0, len(text), size):
        finished += blocks.feed(text[start : start + size])
    return finished, blocks.open


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        ("one line", [], "one line"),
        ("one\ntwo\n", [], "one\ntwo\n"),
        ("one\n\n", [], "one\n\n"),
        ("one\n\ntwo", ["one"], "two"),
        ("one\n\n\n \ntwo\n\nthree", ["one", "two"], "three"),
        ("\n\none\n\ntwo", ["one"], "two"),
        ("```py\na\n\nb\n```\nrest", ["```py\na\n\nb\n```"], "rest"),
        ("~~~\n```\n\nx\n~~~\n", ["~~~\n```\n\nx\n~~~"], ""),
        ("````\n```\n\nx\n", [], "````\n```\n\nx\n"),
        ("- a\n\n  more of a\n\n- b", ["- a\n\n  more of a"], "- b"),
        ("- a\n  ```\n\n  x\n  ```\n", [], "- a\n  ```\n\n  x\n  ```\n"),
        ("```x``` is code\n\nyes", ["```x``` is code"], "yes"),
    ],
)
def test_a_block_is_finished_when_nothing_can_change_it(text, finished, rest):
    assert cut(text) == (finished, rest)
    assert cut(text, size=len(text)) == (finished, rest)


def test_each_line_is_read_once():
    blocks = Blocks()
    blocks.feed("word " * 1000 + "\n")
    scanned = blocks._scanned
    blocks.feed("more\n")
    assert (scanned, blocks._scanned) == (5001, 5006)
