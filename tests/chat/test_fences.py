import pytest

from tinychat.chat.fences import is_open, unfence


@pytest.mark.parametrize("text", ['"""', '"""one', '"""one\ntwo', '""""'])
def test_an_open_fence_asks_for_more(text):
    assert is_open(text)


@pytest.mark.parametrize("text", ["", "plain", 'say """', '"""one"""', '"""\none\n"""', '"""one\ntwo""" '])
def test_a_closed_fence_or_none_is_complete(text):
    assert not is_open(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain", "plain"),
        ('"""one"""', "one"),
        ('"""\none\n\n  two\n"""', "one\n\n  two"),
        ('"""one\ntwo""" ', "one\ntwo"),
        ('"""cut short', "cut short"),
    ],
)
def test_fences_are_not_part_of_the_message(text, message):
    assert unfence(text) == message
