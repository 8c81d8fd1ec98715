import pytest

from tinychat.text.think_sections import ThinkSections


def split(pieces, begun=False):
    """Return (thinking, answer) of a reply that comes in these pieces."""
    sections = ThinkSections(begun)
    parts = [part for piece in pieces for part in sections.feed(piece)]
    parts += sections.finish()
    return tuple("".join(part.text for part in parts if part.thinking is kind) for kind in (True, False))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("plain", ("", "plain")),
        ("", ("", "")),
        ("<think>\nhm\n</think>\n\nyes", ("hm\n", "yes")),
        ("\n<think>hm</think>yes", ("hm", "yes")),
        ("<think>a < b, </thin</think>yes", ("a < b, </thin", "yes")),
        ("<think>cut", ("cut", "")),
        ("<thin air", ("", "<thin air")),
        ("<thi", ("", "<thi")),
        ("The tag <think>x</think> is text", ("", "The tag <think>x</think> is text")),
    ],
)
def test_thinking_and_answer_are_told_apart_however_the_reply_is_cut(reply, expected):
    assert split([reply]) == expected
    assert split(reply) == expected


def test_text_is_handed_on_as_soon_as_it_is_certain():
    sections = ThinkSections()
    assert [part.text for part in sections.feed("Hello")] == ["Hello"]
    assert list(sections.feed("")) == []
    thinking = ThinkSections()
    assert [part.text for part in thinking.feed("<think>so </")] == ["so "]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("\nhm\n</think>\n\nyes", ("hm\n", "yes")),
        ("</think>yes", ("", "yes")),
        ("never ends <think>", ("never ends <think>", "")),
    ],
)
def test_a_section_that_the_template_began(reply, expected):
    assert split([reply], begun=True) == expected
    assert split(reply, begun=True) == expected
