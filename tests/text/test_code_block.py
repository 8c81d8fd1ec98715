from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.errors import TextError
from tinychat.text.code_block import CodeBlock, first_code_block

REPLY = "Here:\n```python\nprint(1)\n\nprint(2)\n```\nand\n```\nno\n```\n"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (REPLY, "print(1)\n\nprint(2)\n"),
        ("```\na\n```", "a\n"),
        ("~~~ sh\na\n```\n~~~", "a\n```\n"),
        ("````\n```\n````", "```\n"),
        ("```\n``\n```` \n", "``\n"),
        ("- a list:\n  ```\n  if x:\n    y\n  ```\n", "if x:\n  y\n"),
        ("```\na\u2028b\r\n```", "a\u2028b\r\n"),
        ("```\n```", ""),
        ("no `code` here", None),
        ("one ```line``` only\n```code```\n", None),
        ("```python\nprint(1)\n", None),
        ("", None),
    ],
)
def test_the_first_block_of_a_reply(reply, code):
    assert first_code_block(reply) == code


@given(st.lists(st.integers(0, len(REPLY)), max_size=8).map(sorted))
def test_it_is_the_same_however_the_reply_is_cut(cuts):
    block = CodeBlock()
    borders = [0, *cuts, len(REPLY)]
    pieces = [REPLY[start:stop] for start, stop in pairwise(borders)]
    assert "".join(map(block.add, pieces)) + block.finish() == "print(1)\n\nprint(2)\n"


def test_code_comes_line_by_line_and_the_end_is_noticed():
    block = CodeBlock()
    assert block.add("```\nprint") == ""
    assert block.add("(1)\nx") == "print(1)\n"
    assert not block.closed
    assert block.add("\n```\n") == "x\n"
    assert block.closed
    block.check()


@pytest.mark.parametrize(
    ("reply", "message"), [("prose", "the reply holds no code block"), ("```\nx\n", "the reply ends inside its code")]
)
def test_a_reply_without_a_whole_block_is_refused(reply, message):
    block = CodeBlock()
    block.add(reply)
    block.finish()
    with pytest.raises(TextError, match=message):
        block.check()


@pytest.mark.parametrize(
    ("reply", "thinking"),
    [
        ("<think>\n```\ndraft\n```\n</think>\n```\ncode\n```\n", False),
        ("```\ndraft\n```\n</think>\n```\ncode\n```\n", True),
    ],
)
def test_what_is_drafted_while_thinking_is_not_the_answer(reply, thinking):
    assert first_code_block(reply, thinking) == "code\n"
