import random

import pytest
from screen import Screen

from tinychat.terminal.live_block import LiveBlock


@pytest.fixture
def screen():
    return Screen(width=10, height=5)


@pytest.fixture
def block(screen):
    return LiveBlock(screen.write, screen.size)


def test_blocks_stand_below_each_other_with_an_empty_line_between(screen, block):
    block.finish(["one"])
    block.show(["two"])
    block.finish(["two", "more"])
    assert screen.lines == ["one", "", "two", "more", ""]


@pytest.mark.parametrize(
    "states",
    [
        [["a"], ["ab"], ["ab", "c"]],
        [["a", "b"], ["a"]],
        [["a", "b"], []],
        [["long line", "b"], ["short", "b"]],
        [["0123456789", "b"], ["9876543210", "c"]],
        [["漢字", "x"], ["😀字", "x", "y"]],
        [["\x1b[1mbold\x1b[0m"], ["\x1b[1mbolder\x1b[0m"]],
    ],
)
def test_the_screen_shows_the_last_state(screen, block, states):
    for lines in states:
        block.show(lines)
    bare = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
    assert [line for line in screen.lines if line] == bare


def test_any_sequence_of_states_ends_in_the_last(screen, block):
    choose = random.Random(7)
    for _ in range(300):
        lines = ["".join(choose.choices("ab ", k=choose.randrange(11))) for _ in range(choose.randrange(5))]
        block.show(lines)
        shown = screen.lines + [""] * len(lines)
        assert shown[: len(lines)] == [line.rstrip() for line in lines]


def test_a_line_that_grows_is_not_written_again(screen):
    written = []
    block = LiveBlock(written.append, screen.size)
    for lines in (["Once"], ["Once upon"], ["Once upon", "a"]):
        block.show(lines)
    assert "".join(written) == "Once upon\na"


def test_lines_that_leave_the_screen_are_final(screen, block):
    for count in range(1, 12):
        block.show([f"line {number}" for number in range(count)])
    block.finish([f"line {number}" for number in range(12)])
    assert screen.lines == [*(f"line {number}" for number in range(12)), ""]


def test_a_change_of_width_begins_the_block_again(screen, block):
    block.show(["0123456789", "ab"])
    # What a terminal makes of the first line when it becomes narrower.
    screen._rows, screen._row, screen.width = [list("012345"), list("6789"), list("ab")], 2, 6
    block.finish(["012345", "6789ab"])
    assert screen.lines == ["012345", "6789ab", ""]
