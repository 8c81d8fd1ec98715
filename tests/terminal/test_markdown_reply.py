import pytest
from screen import Screen

from tinychat.terminal.markdown_reply import MarkdownReply

REPLY = """# Title

Some **bold** text, and enough of it to be wrapped more than once on a narrow screen.

- one
- two

```python
x = 1

y = 2
```

| a | b |
|---|---|
| 1 | 2 |

The end.
"""


CODE_WORDS = """2*3*4, `__init__` and __init__ of f(*args, **kwargs), **bold**.

![a *cat*](cat.png) at <https://x.org/a> or [b](https://x.org/b)

---

| a<br>b | c |
|---|---|
| 1<br/>2 | __all__ |

- ![d](d.png)
- ***

> x*y*z
"""


class Clock:
    """Time passes by `step` seconds at each look."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def draw(screen, pieces, step=1.0, on_hidden=None, **environment):
    reply = MarkdownReply(screen, screen.size, {"TERM": "xterm-256color", **environment}, on_hidden, Clock(step))
    for piece in pieces:
        reply.feed(piece)
    reply.finish()
    return screen.lines


@pytest.mark.parametrize("width", [80, 30, 12])
def test_however_it_streams_the_end_looks_the_same(width):
    whole = draw(Screen(width, 60), [REPLY])
    assert draw(Screen(width, 60), REPLY) == whole
    assert draw(Screen(width, 60), [REPLY[i : i + 7] for i in range(0, len(REPLY), 7)]) == whole
    assert draw(Screen(width, 60), REPLY, step=0.001) == whole


@pytest.mark.parametrize("width", [60, 14])
def test_wherever_a_text_is_split_the_end_looks_the_same(width):
    whole = draw(Screen(width, 60), [CODE_WORDS])
    for at in range(1, len(CODE_WORDS)):
        assert draw(Screen(width, 60), [CODE_WORDS[:at], CODE_WORDS[at:]]) == whole
    assert draw(Screen(width, 60), CODE_WORDS) == whole


def test_finished_blocks_stand_apart():
    assert draw(Screen(), "# A\n\nb\n\n\n- c\n- d\n") == ["A", "", "b", "", " • c", " • d", ""]


def test_a_reply_longer_than_the_screen_loses_nothing():
    verses = "\n".join(f"verse {number}" for number in range(50))
    assert draw(Screen(40, 8), verses) == [*verses.split("\n"), ""]


@pytest.mark.parametrize(
    ("step", "at_most"),
    [
        # Drawing takes as long as a piece does: after the first one, every twentieth may be drawn.
        (0.01, 1 + 1000 / 19),
        # The model is quicker than the eye: 1,000 pieces in a tenth of a second.
        (0.0001, 4),
    ],
)
def test_drawing_takes_a_bounded_share_of_the_time(step, at_most):
    screen = Screen()
    draw(screen, "word " * 200, step)
    assert 2 < screen.writes <= at_most + 2  # the last drawing, and the end of its line


def test_after_a_slow_drawing_words_wait_for_half_a_second_at_most():
    # Each piece looks at the clock, each drawing twice more: the first takes two seconds.
    clock = iter([0.0, 0.0, 2.0, 2.4, 2.5, 2.5, 2.6])
    screen = Screen()
    reply = MarkdownReply(screen, screen.size, {"TERM": "xterm-256color"}, clock=lambda: next(clock))
    shown = []
    for piece in ("one", " two", " three"):
        reply.feed(piece)
        shown.append(screen.lines[0])
    assert shown == ["one", "one", "one two three"]


def test_an_empty_reply_draws_nothing():
    assert draw(Screen(), ["", "\n", " "]) == [""]


def test_thinking_stands_before_the_answer():
    assert draw(Screen(), "<think>\n2 * 2?\n</think>\n\n*Four*.", NO_COLOR="1") == ["2 * 2?", "", "Four.", ""]


def test_folded_thinking_is_counted():
    counts = []
    lines = draw(Screen(), "<think>hm</think>Four.", on_hidden=lambda *count: counts.append(count))
    assert lines == ["Four.", ""]
    assert counts == [(1, False), (2, False), (2, True)]


def test_a_reply_cut_while_thinking_ends_its_thinking():
    counts = []
    draw(Screen(), "<think>hm", on_hidden=lambda *count: counts.append(count))
    assert counts[-1] == (2, True)
    assert draw(Screen(), "<think>hm", NO_COLOR="1")[0] == "hm"


def with_interjection(text, at):
    """Return what a reply looks like where a line is to be interjected after the first `at` characters."""
    screen = Screen()
    reply = MarkdownReply(screen, screen.size, {"TERM": "xterm", "NO_COLOR": "1"}, clock=Clock(1.0))
    for number, letter in enumerate(text):
        if number == at:
            reply.interject(lambda: screen.write("by the way\n"))
        reply.feed(letter)
    if at == len(text):
        reply.interject(lambda: screen.write("by the way\n"))
    reply.finish()
    return screen.lines


@pytest.mark.parametrize(
    ("text", "at", "lines"),
    [
        ("one sentence.\n\nanother", 5, ["one sentence.", "", "by the way", "", "another", ""]),
        ("one sentence.\n\nanother", 0, ["by the way", "one sentence.", "", "another", ""]),
        ("one sentence.", 5, ["one sentence.", "", "by the way", ""]),
        ("```\na\n\nb\n```\nend", 6, ["  a", "", "  b", "", "by the way", "", "end", ""]),
        ("<think>hm, hm</think>Four.", 10, ["hm, hm", "", "by the way", "Four.", ""]),
        ("one\n\n", 5, ["one", "", "by the way", ""]),
    ],
)
def test_an_interjection_waits_for_the_end_of_a_block(text, at, lines):
    assert with_interjection(text, at) == lines
