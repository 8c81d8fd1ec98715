import io
import signal

import pytest
from fake_loop import Script
from fake_model import EOS, Replies, fake_model

from tinychat.chat.commands import COMMANDS
from tinychat.chat.repl import Repl
from tinychat.conversation.conversation import Chat
from tinychat.errors import ContextError, SettingError
from tinychat.terminal.line_input import LineDiscarded
from tinychat.terminal.rendering import Renderer


def converse(lines, *replies, interactive=True, model=None, **sequence):
    """Run the loop and return (stdout, stderr, the conversation)."""
    chat = Chat(model or fake_model(Replies(*replies), **sequence), temperature=0.0)
    out, err = io.StringIO(), io.StringIO()
    Repl(chat, Script(lines, interactive), Renderer(out, err, {})).run()
    return out.getvalue(), err.getvalue(), chat


def press_ctrl_c_at(*steps):
    """Return a hook that presses Ctrl-C before these steps of the engine."""
    return lambda count: signal.raise_signal(signal.SIGINT) if count in steps else None


def test_lines_of_a_pipe_are_answered_in_silence():
    out, err, _ = converse(["hi", "", "how are you?"], "Hello!", "Fine.\n", interactive=False)
    assert out == "Hello!\nFine.\n"
    assert err == ""


def test_a_person_is_greeted():
    out, err, _ = converse(["hi"], "Hello!")
    assert out == "Hello!\n"
    assert err == "fake Ctrl-C stops a reply, Ctrl-D leaves, /help lists the commands\n"


@pytest.mark.parametrize("interactive", [True, False])
def test_a_model_without_template_says_so_once(interactive):
    model = fake_model(lambda ids: EOS, has_template=False)
    _, err, _ = converse(["hi", "and?"], model=model, interactive=interactive)
    assert err.splitlines()[-1] == "this model has no chat template: it continues a plain dialogue instead"
    assert err.count("no chat template") == 1


def test_a_pipe_is_told_that_a_reply_was_cut():
    _, err, _ = converse(["hi"], "Hello!", interactive=False, context_size=8)
    assert err == "the reply is cut, the context is full: /set context N makes it larger\n"


def test_a_cut_reply_is_continued_or_given_more_tokens_by_commands():
    _, err, _ = converse(["/set max_tokens 2", "hi"], "Hello!", interactive=False)
    said = "the reply is cut at the token limit: /continue continues it, /set max_tokens N raises the limit"
    assert err.splitlines()[1:] == [said]


def test_the_bar_tells_what_the_conversation_takes():
    bars = []

    class Watched(Script):
        def read(self, prompt):
            bars.append(prompt.bar(20))
            return super().read(prompt)

    chat = Chat(fake_model(Replies("Hello!")), temperature=0.0)
    lines = Watched(["hi", "/clear"], interactive=True)
    Repl(chat, lines, Renderer(io.StringIO(), io.StringIO(), {})).run()
    assert bars == ["context 0/256", "context 11/256", "context 0/256"]


def test_a_turn_renders_and_encodes_the_conversation_once():
    chat = Chat(fake_model(Replies("Hello!", "More")), temperature=0.0)
    template, rendered = chat.model.template, []
    render_ids = template.render_ids
    template.render_ids = lambda messages, *more, **flags: (
        rendered.append(len(messages)) or render_ids(messages, *more, **flags)
    )
    lines = Script(["hi", "/stats", "/set top_k 3", "and?", "/stats"], interactive=True)
    Repl(chat, lines, Renderer(io.StringIO(), io.StringIO(), {})).run()
    assert rendered == [1, 3]


def test_ctrl_c_stops_the_reply_and_the_chat_goes_on():
    # Step 0 reads the prompt, each later one writes a letter.
    out, _, chat = converse(["hi", "and?"], "Hello there", "More", before_step=press_ctrl_c_at(3))
    assert out == "Hell\nMore\n"
    assert [(m.content, m.partial) for m in chat.messages] == [
        ("hi", False),
        ("Hell", True),
        ("and?", False),
        ("More", False),
    ]


def test_a_stopped_reply_goes_on():
    out, _, chat = converse(["hi", "/continue", "and?"], "Hello there", "More", before_step=press_ctrl_c_at(3))
    assert out == "Hell\no there\nMore\n"
    assert [(m.content, m.partial) for m in chat.messages[1::2]] == [("Hello there", False), ("More", False)]


def test_ctrl_c_while_the_prompt_is_read_withdraws_the_message():
    lines = ["a message of several chunks", "hi"]
    out, err, chat = converse(lines, "Hello!", chunk_size=8, before_step=press_ctrl_c_at(1))
    assert out == "Hello!\n"
    assert err.splitlines()[-2:] == [
        "stopped before the reply began: the conversation is unchanged",
        "your message is back in the prompt",
    ]
    assert [message.content for message in chat.messages] == ["hi", "Hello!"]


def test_ctrl_c_stops_a_summary_and_the_chat_goes_on():
    lines = ["hi" * 99, "and?", "/compact", "more"]
    # Two replies of one letter take four steps; the sixth writes the summary.
    size = {"context_size": 1000, "chunk_size": 1000}
    out, err, chat = converse(lines, "A", "B", "Summary.", "C", before_step=press_ctrl_c_at(5), **size)
    assert out == "A\nB\nC\n"
    assert "stopped: the conversation is unchanged\n" in err
    assert [message.content for message in chat.messages] == ["hi" * 99, "A", "and?", "B", "more", "C"]


def test_ctrl_c_stops_a_summary_of_a_pipe_and_the_program():
    with pytest.raises(KeyboardInterrupt):
        converse(
            ["hi" * 99, "and?", "/compact"],
            *("A", "B", "Summary."),
            interactive=False,
            before_step=press_ctrl_c_at(5),
            context_size=1000,
            chunk_size=1000,
        )


def test_a_pipe_runs_no_command(tmp_path):
    with pytest.raises(SettingError, match="this needs a confirmation at a terminal"):
        converse([f"/run touch {tmp_path / 'file'}", "y"], interactive=False)
    assert list(tmp_path.iterdir()) == []


def test_impatient_ctrl_c_returns_to_the_prompt():
    waiting = [3]

    def press_often(count):
        if count in waiting:
            waiting.remove(count)
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)

    out, _, chat = converse(["hi", "and?"], "Hello there", "More", before_step=press_often)
    assert out == "Hel\nMore\n"
    assert chat.messages[1].partial


def test_the_previous_ctrl_c_handler_returns_after_a_reply():
    handler = signal.getsignal(signal.SIGINT)
    converse(["hi"], "Hello!", before_step=press_ctrl_c_at(2))
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_at_the_prompt_clears_the_line():
    out, err, _ = converse([KeyboardInterrupt, "hi", KeyboardInterrupt, "hi"], "Hello!", "Again!")
    assert out == "Hello!\nAgain!\n"
    assert err.endswith("Ctrl-C again or Ctrl-D leaves, /help lists the commands\n")


def test_ctrl_c_twice_in_a_row_leaves_unless_it_threw_text_away():
    out, _, _ = converse([LineDiscarded, LineDiscarded, "hi", KeyboardInterrupt, KeyboardInterrupt, "more"], "Hello!")
    assert out == "Hello!\n"


def test_two_presses_that_are_far_apart_do_not_leave(monkeypatch):
    times = iter([100.0, 102.5, 103.0])
    monkeypatch.setattr("tinychat.chat.repl.monotonic", lambda: next(times))
    presses = [KeyboardInterrupt, KeyboardInterrupt, LineDiscarded, "hi", KeyboardInterrupt, "and?"]
    assert converse(presses, "Hello!", "Good.")[0] == "Hello!\nGood.\n"


class Editor(Script):
    """Notes what each prompt begins with."""

    def __init__(self, lines):
        super().__init__(lines, interactive=True)
        self.shown = []

    def read(self, prompt):
        self.shown.append(prompt.text)
        return super().read(prompt)


@pytest.mark.parametrize("given_up", [KeyboardInterrupt, LineDiscarded, "", "/context", '"""  """'])
def test_an_edit_that_is_given_up_changes_nothing(given_up):
    chat = Chat(fake_model(Replies("Hello!", "Good.")), temperature=0.0)
    lines = Editor(["hi", "/edit", given_up, "more"])
    Repl(chat, lines, Renderer(io.StringIO(), io.StringIO(), {})).run()
    assert lines.shown == ["", "", "hi", "", ""]
    assert [message.content for message in chat.messages] == ["hi", "Hello!", "more", "Good."]


def test_an_edited_message_that_is_too_long_stays_one():
    chat = Chat(fake_model(Replies("Hello!", "Good."), context_size=30), temperature=0.0)
    lines = Editor(["hi", "/edit", "x" * 80, "ho"])
    Repl(chat, lines, Renderer(io.StringIO(), io.StringIO(), {})).run()
    assert lines.shown == ["", "", "hi", "x" * 80, ""]
    assert [message.content for message in chat.messages] == ["ho", "Good."]


def test_fences_are_taken_off_and_hold_no_command():
    out, _, chat = converse(['"""\n/exit\nis a command\n"""', '""""""'], "Indeed.")
    assert out == "Indeed.\n"
    assert chat.messages[0].content == "/exit\nis a command"


def test_ctrl_c_in_a_pipe_ends_the_program():
    with pytest.raises(KeyboardInterrupt):
        converse([KeyboardInterrupt, "hi"], "Hello!", interactive=False)


def test_an_error_is_shown_to_a_person_and_raised_to_a_pipe():
    lines = ["x" * 80, "hi"]
    out, err, _ = converse(lines, "Hello!", context_size=30)
    assert out == "Hello!\n"
    assert "error: the prompt has 83 tokens but the context holds 30" in err
    with pytest.raises(ContextError):
        converse(lines, "Hello!", interactive=False, context_size=30)


@pytest.mark.parametrize("line", ["help", " Help ", "/help"])
def test_the_word_help_is_no_message(line):
    out, err, chat = converse([line], "Hello!")
    assert (out, chat.messages) == ("", [])
    assert "/regen " in err


@pytest.mark.parametrize("line", ["/exit", "/bye", "/quit", "/BYE", "exit", "quit", " Quit "])
def test_words_that_leave(line):
    out, _, _ = converse([line, "hi"], "Hello!")
    assert out == ""


def test_other_names_of_commands():
    _, err, chat = converse(["hi", "/new", "/?"], "Hello!")
    assert "a new conversation begins" in err
    assert "/regen " in err
    assert chat.messages == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/etc/hosts is empty", "/etc/hosts is empty"),
        ("/etc/hosts", "/etc/hosts"),
        ("/home. What is it?", "/home. What is it?"),
        ("/zzz what is this?", "/zzz what is this?"),
        ("//exit is a command", "/exit is a command"),
        ("exit the building", "exit the building"),
        ('"""exit"""', "exit"),
    ],
)
def test_a_message_may_begin_like_a_command(line, message):
    out, _, chat = converse([line], "Indeed.")
    assert out == "Indeed.\n"
    assert chat.messages[0].content == message


def test_help_lists_every_command():
    _, err, _ = converse(["/help"])
    listed = [line.split()[0] for line in err.splitlines()[1:]]
    assert listed == [f"/{name}" for name in COMMANDS]
    assert listed[:2] == ["/help", "/exit"]


def test_regen_writes_another_reply():
    out, _, chat = converse(["hi", "/regen"], "One", "Two")
    assert out == "One\nTwo\n"
    assert [message.content for message in chat.messages] == ["hi", "Two"]


def test_undo_clear_and_system():
    lines = ["/system Be kind.", "one", "two", "/undo", "/system", "/clear", "/system none"]
    _, err, chat = converse(lines, "1", "2")
    assert err.splitlines()[1:] == [
        "system prompt: Be kind.",
        "undone: two",
        "system prompt: Be kind.",
        "a new conversation begins",
        "system prompt: none",
    ]
    assert (chat.messages, chat.system) == ([], None)


def test_stats_before_and_after_a_reply():
    _, err, _ = converse(["/stats", "hi", "/stats"], "Hello!")
    assert "context: 0 of 256 tokens in use, 256 left; messages: 0" in err
    assert "context: 11 of 256 tokens in use, 245 left; messages: 2" in err
    assert "last reply: 6 tokens, first token after" in err
    assert ", prompt 5 tokens, seed " in err


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("/regenn", "unknown command /regenn: did you mean /regen? For a message, type //regenn"),
        ("/xyzzy", "unknown command /xyzzy: /help lists the commands; for a message, type //xyzzy"),
        ("/", "unknown command /: /help lists the commands"),
        ("/list", "unknown command /list: /sessions lists saved conversations, /file attachments, and"),
        ("/history", "unknown command /history: /context shows this conversation, /sessions lists saved ones"),
        ("/sett temperature 1", "unknown command /sett: did you mean /set?"),
        ("/clear all", "/clear takes no argument: type /clear"),
        ("/undo", "nothing to take back"),
        ("/regen", "no reply yet"),
    ],
)
def test_a_wrong_command_is_explained(line, advice):
    _, err, _ = converse([line])
    assert advice in err.splitlines()[-1]
    with pytest.raises(SettingError):
        converse([line], interactive=False)


def test_a_space_before_the_slash_makes_it_a_message():
    out, _, chat = converse([" /exit is a command"], "Indeed.")
    assert out == "Indeed.\n"
    assert chat.messages[0].content == " /exit is a command"
