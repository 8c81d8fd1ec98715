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
        ("An end </think> alone", ("", "An end </think> alone")),
        ("<think>a</think>b\n\n</think>\n\nc", ("a", "b\n\nc")),
        ("<think>a</think></think>\nc</think>", ("a", "c")),
        ("<think>a</think>\n\nHm.</think>\n\nc </thi", ("a", "Hm.\n\nc </thi")),
        ("<think>a</think>It is `</think>`.", ("a", "It is `</think>`.")),
        ("<think>a</think>As <think>x</think></think>", ("a", "As <think>x</think></think>")),
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
        ("so</think>yes\n</think>\nno", ("so", "yes\nno")),
        ("never ends <think>", ("never ends <think>", "")),
    ],
)
def test_a_section_that_the_template_began(reply, expected):
    assert split([reply], begun=True) == expected
    assert split(reply, begun=True) == expected
