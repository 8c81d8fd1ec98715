import io
import os
from dataclasses import replace

import pytest
from screen import Terminal

from tinychat.generate.reply import Summary
from tinychat.terminal.rendering import Renderer, terminal_size
from tinychat.terminal.status_line import status_bar, summary_line

SUMMARY = Summary(
    prompt_tokens=30,
    reused_tokens=10,
    new_tokens=16,
    decode_steps=5,
    prefill_seconds=0.5,
    decode_seconds=0.25,
    first_token_seconds=0.51,
    finish_reason="stop",
    seed=1,
)


def renderer(out, err, plain=True, **environment):
    return Renderer(out, err, environment, plain)


def test_a_terminal_gets_harmless_text_and_a_file_gets_all():
    for stream, expected in ((Terminal(), "a␛[31mb"), (io.StringIO(), "a\x1b[31mb")):
        renderer(stream, io.StringIO()).text("a\x1b[31mb")
        assert stream.getvalue() == expected


def test_the_reply_ends_with_one_line_end():
    for pieces in (["one"], ["one\n"], ["one", ""], ["one", "\n"]):
        out = io.StringIO()
        drawn = renderer(out, io.StringIO())
        for piece in pieces:
            drawn.text(piece)
        drawn.end_reply()
        assert out.getvalue() == "one\n"


def test_an_empty_reply_writes_nothing():
    out = io.StringIO()
    drawn = renderer(out, io.StringIO())
    drawn.text("")
    drawn.end_reply()
    assert out.getvalue() == ""


def test_the_status_is_erased_before_the_text():
    out = err = Terminal()
    drawn = renderer(out, err)
    drawn.prefill_progress(0, 1000)
    drawn.prefill_progress(333, 1000)
    drawn.text("Hi")
    drawn.text(" you")
    assert err.getvalue() == (
        "\r\x1b[K\x1b[2mreading the prompt 0 %\x1b[0m\r\x1b[K\x1b[2mreading the prompt 33 %\x1b[0m\r\x1b[KHi you"
    )


@pytest.mark.parametrize(
    ("err", "total", "environment"),
    [(io.StringIO(), 1000, {}), (Terminal(), 10, {}), (Terminal(), 1000, {"TERM": "dumb"})],
    ids=["no terminal", "short prompt", "dumb terminal"],
)
def test_no_status_where_it_would_disturb(err, total, environment):
    renderer(io.StringIO(), err, **environment).prefill_progress(5, total)
    assert err.getvalue() == ""


def test_a_bar_follows_work_in_one_line_and_goes_with_the_notice(monkeypatch):
    monkeypatch.setattr("tinychat.terminal.rendering.terminal_size", lambda stream: (30, 24))
    err = Terminal()
    drawn = renderer(io.StringIO(), err, NO_COLOR="1")
    show = drawn.progress("compiling what takes a while")
    show(0, 4)
    show(1, 4)
    drawn.notice("done")
    begun, quarter, erased = err.getvalue().split("\r\x1b[K")[1:]
    assert (begun, quarter) == ("▱▱▱▱▱▱▱▱▱▱ 0% compiling what ", "▰▰▱▱▱▱▱▱▱▱ 25% compiling what")
    assert erased == "done\n"
    plain = io.StringIO()
    show = renderer(io.StringIO(), plain).progress("compiling")
    show(0, 4)
    show(1, 4)
    assert plain.getvalue() == "compiling\n"


def test_no_color_means_no_styles_but_the_status_still_works():
    err = Terminal()
    drawn = renderer(io.StringIO(), err, NO_COLOR="1")
    drawn.prefill_progress(500, 1000)
    drawn.summary(SUMMARY)
    assert "\x1b[2m" not in err.getvalue()
    assert "reading the prompt 50 %" in err.getvalue()
    assert "16 tokens" in err.getvalue()


def test_the_summary_is_for_a_watching_person_only():
    quiet, watched = io.StringIO(), Terminal()
    renderer(io.StringIO(), quiet).summary(SUMMARY)
    renderer(io.StringIO(), watched).summary(SUMMARY)
    assert quiet.getvalue() == ""
    assert watched.getvalue() == f"\x1b[2m{summary_line(SUMMARY, 80)}\x1b[0m\n"


def test_lines_of_a_narrow_terminal_end_between_words(monkeypatch):
    monkeypatch.setattr("tinychat.terminal.rendering.terminal_size", lambda stream: (24, 10))
    err = Terminal()
    drawn = renderer(io.StringIO(), err, NO_COLOR="1")
    drawn.banner("small", "Ctrl-C stops a reply, Ctrl-D leaves")
    drawn.summary(SUMMARY)
    assert err.getvalue().splitlines() == [
        "small Ctrl-C stops a",
        "reply, Ctrl-D leaves",
        "16 tokens, 20.0 tok/s,",
        "first token after 0.51 s",
    ]


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("length", "the reply is cut at the token limit: raise --max-tokens\n"),
        ("context", "the reply is cut, the context is full: raise --context\n"),
        ("interrupted", ""),
        ("stop_string", ""),
    ],
)
def test_where_nobody_watches_only_a_cut_is_said(reason, line):
    err = io.StringIO()
    renderer(io.StringIO(), err).summary(replace(SUMMARY, finish_reason=reason))
    assert err.getvalue() == line


def test_the_summary_line():
    assert summary_line(SUMMARY) == (
        "16 tokens, 20.0 tok/s, first token after 0.51 s, prompt 30 tokens at 40 tok/s, 10 reused"
    )
    cut = replace(SUMMARY, reused_tokens=0, finish_reason="length")
    assert summary_line(cut).endswith("prompt 30 tokens at 60 tok/s, cut at the token limit")


def test_a_narrow_terminal_gets_the_short_summary():
    stopped = replace(SUMMARY, finish_reason="interrupted")
    assert summary_line(stopped, 120) == summary_line(stopped)
    assert summary_line(stopped, 80) == "16 tokens, 20.0 tok/s, first token after 0.51 s, stopped"


def test_the_rate_of_a_few_tokens_is_not_shown():
    few = replace(SUMMARY, new_tokens=15, reused_tokens=15)
    assert summary_line(few) == "15 tokens, first token after 0.51 s, prompt 30 tokens, 15 reused"
    assert status_bar("some-model", 11, 22, [], few, 80) == "some-model · context 11/22 ▰▰▰▰▰▱▱▱▱▱"


def test_errors_and_notices_are_shown_safely():
    err = Terminal()
    renderer(io.StringIO(), err).error("no such file: \x1b[31m")
    assert err.getvalue() == "error: no such file: ␛[31m\n"


def test_a_terminal_gets_markdown_unless_it_is_dumb_or_wants_plain_text():
    for options, expected in (({"plain": False}, "Title\n"), ({}, "# Title\n"), ({"TERM": "dumb"}, "# Title\n")):
        out = Terminal()
        drawn = renderer(out, Terminal(), NO_COLOR="1", **options)
        drawn.text("# Title")
        drawn.end_reply()
        assert out.getvalue() == expected


def test_a_notice_in_mid_reply_has_a_line_of_its_own():
    for plain in (True, False):
        out = err = Terminal()
        drawn = renderer(out, err, plain=plain, NO_COLOR="1")
        drawn.text("before")
        drawn.notice("the oldest turn went")
        drawn.text(" the end.\n\nAfter it")
        drawn.end_reply()
        said = ["before the end.", "", "the oldest turn went", "", "After it", ""]
        assert out.getvalue().replace("\x1b[K", "").split("\n")[-6:] == said


def test_a_notice_leaves_a_file_alone():
    out, err = io.StringIO(), Terminal()
    drawn = renderer(out, err)
    for text in ("bef", "ore"):
        drawn.text(text)
        drawn.notice("the oldest turn went")
    drawn.end_reply()
    assert out.getvalue() == "before\n"
    assert err.getvalue() == 2 * "the oldest turn went\n"


def test_thinking_that_the_template_began():
    out = err = Terminal()
    drawn = renderer(out, err, plain=False, NO_COLOR="1")
    drawn.starts_thinking = True
    for piece in ("hm", "</think>", "Yes."):
        drawn.text(piece)
    drawn.end_reply()
    assert out.getvalue() == "hm\n\nYes.\n"


def test_folded_thinking_is_one_line():
    out, err = Terminal(), Terminal()
    drawn = renderer(out, err, plain=False, NO_COLOR="1")
    drawn.show_thinking = False
    for piece in ("<think>", "hm", "</think>", "Yes."):
        drawn.text(piece)
    drawn.end_reply()
    assert out.getvalue() == "Yes.\n"
    status = "\r\x1b[Kthinking, 2 characters\r\x1b[K"
    assert err.getvalue() == f"{status}thought 2 characters; /set think show shows the next\n"


def test_a_stream_without_terminal_has_the_usual_size():
    assert terminal_size(io.StringIO()) == (80, 24)


@pytest.mark.parametrize(("reported", "size"), [((40, 10), (40, 10)), ((0, 0), (80, 24))])
def test_a_terminal_that_knows_no_size_has_the_usual_one(monkeypatch, reported, size):
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size(reported))
    with open(os.devnull) as stream:
        assert terminal_size(stream) == size


def test_before_the_first_reply_there_is_no_rate():
    assert status_bar("fake", 0, 256, [], None, 80) == "fake · context 0/256 ▱▱▱▱▱▱▱▱▱▱"


def test_the_bar_tells_model_context_and_rate():
    bar = status_bar("some-model", 11, 22, [], SUMMARY, 80)
    assert bar == "some-model · context 11/22 ▰▰▰▰▰▱▱▱▱▱ · 20.0 tok/s"


@pytest.mark.parametrize("width", [80, 50, 40, 30, 20, 10])
def test_the_bar_fits_and_keeps_the_context_longest(width):
    bar = status_bar("some-model", 11, 22, [], SUMMARY, width)
    assert len(bar) < width
    assert "11/22" in bar
    attached = status_bar("some-model", 11, 22, ["notes.txt", "a very long name.txt"], SUMMARY, width)
    assert len(attached) < width
    assert "11/22" in attached
    assert any(mark in attached for mark in ("attached: notes.txt, a very long name.txt", "attached: 2", "+2"))


def test_an_exchange_of_before_is_dim_and_breaks_between_words(monkeypatch):
    monkeypatch.setattr("tinychat.terminal.rendering.terminal_size", lambda stream: (20, 12))
    err = Terminal()
    Renderer(Terminal(), err, {"TERM": "xterm"}).exchange("hi", "one two three four five six\n" + "line\n" * 9)
    lines = err.getvalue().splitlines()
    assert lines[0] == "\x1b[2m> hi\x1b[0m"
    assert lines[1:] == [f"\x1b[2m{text}\x1b[0m" for text in ("...", "line", "line", "line", "line")]
    err = Terminal()
    Renderer(Terminal(), err, {"NO_COLOR": "1"}).exchange("hi", "one two three four five six")
    assert err.getvalue() == "> hi\none two three four\nfive six\n"
