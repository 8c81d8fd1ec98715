"""A prompt that is drawn anew begins where a terminal of another width has moved it."""

from types import SimpleNamespace

import pytest
from prompt_toolkit.data_structures import Point, Size
from prompt_toolkit.layout.screen import Char, Screen
from prompt_toolkit.utils import Event

from tinychat.terminal.resizing import added_rows, follow_size


def screen_of(*lines):
    screen = Screen()
    for row, line in enumerate(lines):
        for column, character in enumerate(line):
            screen.data_buffer[row][column] = Char(character)
    return screen


@pytest.mark.parametrize(
    ("lines", "row", "column", "columns", "rows"),
    [
        (["> hi"], 0, 4, 40, 0),
        (["> " + "x" * 69], 0, 71, 72, 0),
        (["> " + "x" * 69], 0, 71, 71, 0),
        (["> " + "x" * 69], 0, 71, 70, 1),
        (["> " + "x" * 69], 0, 71, 30, 2),
        (["> " + "x" * 69], 0, 3, 30, 0),
        (["x" * 80, "y" * 20, ""], 2, 0, 40, 1),
        (["x" * 80 + " " * 9, "y" * 60], 1, 60, 30, 3),
    ],
)
def test_rows_that_a_narrower_terminal_adds_above_the_cursor(lines, row, column, columns, rows):
    assert added_rows(screen_of(*lines), row, column, columns) == rows


class Prompt:
    """The parts of an application that a prompt uses: its drawing, and what was done with the terminal."""

    def __init__(self, columns=80):
        self.done = []
        self.size = Size(rows=24, columns=columns)
        self.screen = screen_of("> " + "x" * 69)
        self.screen.get_cursor_position = lambda window: Point(x=71, y=0)
        self.output = SimpleNamespace(get_size=lambda: self.size, cursor_up=lambda rows: self.done.append(f"up {rows}"))
        self.renderer = SimpleNamespace(last_rendered_screen=self.screen)
        self.layout = SimpleNamespace(current_window=None)
        self.after_render = Event(self)
        self._on_resize = self.draw

    def draw(self):
        self.done.append("drawn")
        self.after_render()

    def resize(self, columns):
        """Change the width; a signal and a look at it tell of that. Return what is done."""
        self.done, self.size = [], Size(rows=24, columns=columns)
        self._on_resize()
        self._on_resize()
        return self.done


def test_a_prompt_is_drawn_once_where_it_began():
    prompt = Prompt()
    follow_size(prompt, {})
    assert prompt.resize(40) == ["up 1", "drawn"]
    # Meanwhile another prompt was drawn, at another width.
    prompt.size = Size(rows=24, columns=80)
    prompt.draw()
    assert prompt.resize(40) == ["up 1", "drawn"]
    assert prompt.resize(80) == ["up 0", "drawn"]


@pytest.mark.parametrize(
    ("environment", "done"),
    [
        ({"XTERM_VERSION": "XTerm(379)"}, ["drawn"]),
        ({"STY": "1.screen"}, ["drawn"]),
        ({"XTERM_VERSION": "XTerm(379)", "TMUX": "/tmp/tmux"}, ["up 1", "drawn"]),
    ],
)
def test_terminals_that_cut_lines_add_no_rows(environment, done):
    prompt = Prompt()
    follow_size(prompt, environment)
    assert prompt.resize(40) == done
