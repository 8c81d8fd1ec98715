import io
import itertools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tinychat.terminal.markdown import BlockRenderer
from tinychat.terminal.markdown_table import shared_widths

STYLES = re.compile(r"\x1b\[[\d;]*m")
COLOUR = re.compile(r"\x1b\[(?:[\d;]*;)?[39]\d[;m]")


def painter(color_system="truecolor"):
    return BlockRenderer(Console(file=io.StringIO(), force_terminal=True, color_system=color_system))


def shown(block, width=80):
    """Return the lines without their styles."""
    return [STYLES.sub("", line) for line in painter().lines(block, width)]


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        ("# Title", ["Title"]),
        ("a *b* **c** `d` ~~e~~", ["a b c d e"]),
        ("verse one\nverse two", ["verse one", "verse two"]),
        ("- a\n- b\n  - c", [" • a", " • b", "    • c"]),
        ("3. c\n4. d", [" 3 c", " 4 d"]),
        ("> said", ["▌ said"]),
        ("```python\ndef f():\n    pass\n```", ["  def f():", "      pass"]),
        ("```\nunclosed", ["  unclosed"]),
        ("[text](https://example.org)", ["text (https://example.org)"]),
        ("<b>tags</b> stay", ["<b>tags</b> stay"]),
        ("[only]: https://example.org", ["[only]: https://example.org"]),
        ("漢字 😀", ["漢字 😀"]),
        ("see ![a *cat*](cat.png), there", ["see 🌆 a cat (cat.png), there"]),
        ("- ![](i.png)\n- b", [" • 🌆 (i.png)", " • b"]),
        ("[![logo](i.png)](https://x.org) it", ["🌆 logo (i.png) (https://x.org) it"]),
        ("[![https://x.org](i.png)](https://x.org)", ["🌆 https://x.org (i.png) (https://x.org)"]),
        ("<https://x.org/ä>, <a@b.org>", ["https://x.org/ä, a@b.org"]),
        ("[https://x.org](https://x.org) [x](https://x.org)", ["https://x.org x (https://x.org)"]),
        ("a\n\n---\n\nb", ["a", "", "─" * 80, "", "b"]),
        ("***", ["─" * 80]),
        ("> a\n>\n> ---\n>\n> c", ["▌ a", "▌ " + "─" * 76, "▌", "▌ c"]),
        ("", []),
    ],
)
def test_blocks_are_drawn(block, lines):
    assert shown(block) == lines


@pytest.mark.parametrize(
    "text",
    [
        "2*3*4 and 2**3**4",
        "__init__, __main__.py and obj.__dict__()",
        "def f(*args, **kwargs): g(*args, 2*x, **kwargs)",
        "f(x)*g(x)*h, (a)*b*(c), x[i]*y[j]*z, 2*(n-1)*2",
        "π*λ*δ, a_b*c_d*e_f, snake_case_name",
        "**un**believable",
        "my__init__er_ and a____b",
    ],
)
def test_operators_and_names_stay_as_they_are_written(text):
    assert shown(text) == [text]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("这是**重要**的, **서울**은 و**كلمة**", "这是重要的, 서울은 وكلمة"),
        ("__two words__, _one_, (*so*), **Note**: x", "two words, one, (so), Note: x"),
        ("***both*** `2*3*4` *a*.", "both 2*3*4 a."),
        (r"\*no\* *2*3*", "*no* 2*3"),
    ],
)
def test_emphasis_of_whole_words_is_drawn(text, line):
    assert shown(text) == [line]


def test_a_break_in_a_cell_ends_its_line():
    table = "| a | b |\n|---|---|\n| x<br>*y* | `<br>` |\n| 1 <BR /> 2 | 3 |"
    assert shown(table) == [" a  b", " ───────", " x  <br>", " y", "", " 1  3", " 2"]
    assert shown("x<br>y") == ["x<br>y"]


def test_a_break_in_a_cell_of_a_narrow_terminal():
    table = "| animal | food |\n|---|---|\n| a cat of our house | fish<br>milk |"
    assert shown(table, 10) == ["animal: a", "cat of our", "house", "  food:", "  fish", "  milk"]


def test_a_table_has_its_columns_below_each_other():
    assert shown("| a | bb |\n|---|---:|\n| 漢字 | 1 |") == [" a     bb", " ────────", " 漢字   1"]


WIDE = "\n".join(
    ["|".join(f"name {n}" for n in range(10)), "|".join(["---"] * 10), "|".join(f"alpha{n} beta{n}" for n in range(10))]
)


def test_a_wide_table_is_folded_and_loses_nothing():
    lines = shown(WIDE)
    assert max(map(cell_len, lines)) <= 80
    cells = [" ".join(line[start : start + 8].strip() for line in lines).split() for start in range(1, 80, 8)]
    rule = "─" * 78
    assert cells[3] == ["name", "3", rule[:8], "alpha3", "beta3"]
    assert "…" not in "".join(lines)


def test_rows_that_are_folded_stand_apart():
    table = "| a | b |\n|---|---|\n| one | two three |\n| four | five |"
    assert shown(table, 14) == [
        " a     b",
        " ────────────",
        " one   two",
        "       three",
        "",
        " four  five",
    ]


def test_a_table_for_which_the_terminal_is_too_narrow_becomes_lines_of_key_and_value():
    table = "| animal | legs | of what it likes |\n|---|---|---|\n| cat | 4 | milk |\n| bird | 2 | corn and seeds |"
    assert shown(table, 16) == [
        "animal: cat",
        "  legs: 4",
        "  of what it",
        "  likes: milk",
        "",
        "animal: bird",
        "  legs: 2",
        "  of what it",
        "  likes: corn",
        "  and seeds",
    ]


@pytest.mark.parametrize(
    ("natural", "available", "widths"),
    [
        ([3, 5], 20, [3, 5]),
        ([3, 50, 9], 30, [3, 18, 9]),
        ([50, 50], 21, [10, 11]),
        ([9, 9, 9], 2, [0, 1, 1]),
        ([], 80, []),
    ],
)
def test_wide_columns_share_what_narrow_ones_leave(natural, available, widths):
    assert shared_widths(natural, available) == widths


@pytest.mark.parametrize(
    "formula",
    [
        r"\(a_1 * b_1\) and \(x^2\)",
        r"\[ x_1 \{ a*b*c \} \]",
        r"$$\int_0^1 f_1(x) * g_1 dx$$",
        "$$\n- a_1 + b_1\n= c\n$$",
        "\\[\nE = m_1 * c_1 \\\\\n+ 1\n\\]",
        r"$x_1 * y_1$",
        r"\( still_written * so_far",
        "$$\nstill_written * so_far",
        "$5 and $10",
    ],
)
def test_formulas_stay_as_they_are_written(formula):
    assert "\n".join(shown(formula)) == formula


def test_text_around_formulas_is_markdown():
    assert shown("It is *so*: \\(a_1\\), **$x$**.\n\\[ b \\]\nwhere `c` is *d* for $5 or *$10*.") == [
        r"It is so: \(a_1\), $x$.",
        "",
        r"\[ b \]",
        "",
        "where c is d for $5 or $10.",
    ]


def test_inline_code_has_no_background():
    (line,) = painter().lines("a `b` c", 80)
    styles = ";".join(re.findall(r"\x1b\[([\d;]*)m", line)).split(";")
    assert "36" in styles
    assert not [code for code in styles if code.startswith("4") and len(code) == 2]


def test_code_is_highlighted():
    assert "\x1b[" in painter().lines("```python\ndef f(): pass\n```", 80)[0].split("def")[0].strip(" ")


def test_without_colours_there_are_no_styles():
    assert painter(color_system=None).lines("# Title **bold**", 80) == ["Title bold"]


@pytest.mark.parametrize(
    "code", ["\x1b[2J", "&#27;[2J", "&#x1b;[2J", "`\x1b]0;x\x07`", "```\n\x1b[31m\n```", "\x9b31m"]
)
def test_no_escape_code_comes_through(code):
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join(shown(f"a {code} b") + shown(code)))


@given(st.text(alphabet="ab \n#*_`~-+1.>|[]()<!&\\漢😀\t\x1b", max_size=60), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_any_text_fits_any_width(block, width):
    lines = shown(block, width)
    # A wide character cannot be narrower than itself.
    assert all(cell_len(line) <= max(width, 2) for line in lines)
    assert "\x1b" not in "".join(lines)


SLOW = [("easytrieve", "\t"), ("xpp", "a\n"), ("python", "(")]


@pytest.mark.parametrize(("lexer", "text"), SLOW, ids=lambda value: value.strip() or "tab")
@pytest.mark.parametrize("length", [1990, 10_000])
def test_no_lexer_holds_up_the_drawing(lexer, text, length):
    code = f"x{text * length}"[:length]
    started = time.monotonic()
    lines = painter().lines(f"```{lexer}\n{code}x\n```", 80)
    assert time.monotonic() - started < 4
    assert lines


@pytest.mark.parametrize("text", ["__a" * 3000, "*a" * 3000, "![" * 1000 + "](a)" * 1000, "[a](b" * 2000])
def test_no_line_holds_up_the_drawing(text):
    started = time.monotonic()
    assert shown(text)
    assert time.monotonic() - started < 4


def test_a_slow_lexer_ends_the_colours_of_the_reply(monkeypatch):
    quick, slow = "```python\ndef f(): pass\n```", "```slow\n" + "x\n" * 60 + "```"
    clock = itertools.count()
    drawn = painter()
    assert COLOUR.search(drawn.lines(quick, 80)[0])
    monkeypatch.setattr("tinychat.terminal.markdown.perf_counter", lambda: next(clock))
    drawn.lines(slow, 80)
    assert not COLOUR.search(drawn.lines(quick, 80)[0])


def test_long_code_has_no_colours():
    assert not COLOUR.search(painter().lines("```python\n" + "def f(): pass\n" * 200 + "```", 80)[0])
