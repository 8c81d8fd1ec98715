"""Calls of tools in a conversation: found in the reply, decided on, run, answered, and always with a result."""

import signal
import threading
from time import monotonic

import pytest
from fake_model import BOS, USER, Replies, fake_model
from fake_tools import ONCE, FakeTool, asking, call

from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import Message, ToolCall, open_calls
from tinychat.conversation.state import ChatState
from tinychat.conversation.tool_rounds import STOPPED
from tinychat.errors import ContextError, SettingError
from tinychat.tools.consent import ConsentAnswer, Decision
from tinychat.tools.runnable import ToolResult


@pytest.fixture(autouse=True)
def unconstrained(monkeypatch):
    """Without grammars, whose compiler takes time to start: the replies are prepared."""
    monkeypatch.setattr(ChatState, "call_constraint", None)


def chat_with(tools, *replies, consent=None, rounds=10, **sequence):
    """Return a chat with a scripted model and the list of results that it tells of."""
    chat = Chat(
        fake_model(Replies(*replies), **({"context_size": 4096, "chunk_size": 256} | sequence)),
        temperature=0.0,
        tools=tools,
        consent=consent,
        max_tool_rounds=rounds,
        # Replies are the same text over and over.
        loop_stop=False,
    )
    results = []
    chat.tools.on_result = results.append
    return chat, results


def weather(text="12 degrees"):
    return FakeTool("weather", lambda arguments, stop: f"{arguments['city']}: {text}", city="string")


def roles(chat):
    return [message.role for message in chat.messages]


def test_a_call_is_run_and_its_result_answered():
    tool = weather()
    chat, results = chat_with([tool], "Let me see. " + call("weather", city="Bern"), "It is warm.")
    assert chat.say("is it warm?") == "Let me see.It is warm."
    called = ToolCall("call_1_0000", "weather", '{"city": "Bern"}')
    assert chat.messages == [
        Message("user", "is it warm?"),
        Message("assistant", "Let me see.", tool_calls=(called,)),
        Message("tool", "Bern: 12 degrees", tool_call_id="call_1_0000", name="weather"),
        Message("assistant", "It is warm."),
    ]
    assert tool.ran == [{"city": "Bern"}]
    assert [found.call for found in results] == [called]
    assert results[0].seconds >= 0


def test_no_markup_of_calls_is_shown_whatever_the_deltas():
    chat, _ = chat_with([weather()], "Hm" + call("weather", city="<b>") + "!", "Done <tool_call> is a tag.")
    texts = [delta.text for delta in chat.stream("go")]
    # One delta a token, which is a byte.
    assert len(texts) > 50
    assert "".join(texts) == "Hm!Done <tool_call> is a tag."
    assert chat.messages[-1].content == "Done <tool_call> is a tag."


def test_calls_in_thoughts_are_thoughts():
    tool = weather()
    thought = "<think>\n" + call("weather", city="Bern") + "\n</think>\n\n"
    chat, _ = chat_with([tool], thought + "No need.", thought + call("weather", city="Bonn"), "Warm.")
    assert chat.say("warm?") == thought + "No need."
    assert tool.ran == []
    assert chat.say("sure?") == thought + "Warm."
    assert tool.ran == [{"city": "Bonn"}]
    assert chat.messages[3].content == thought


def test_several_calls_run_in_their_order_and_rounds_follow_each_other():
    order = []
    tools = [FakeTool(name, lambda arguments, stop, name=name: order.append(name) or name) for name in ("one", "two")]
    chat, _ = chat_with(tools, call("two") + "\n" + call("one"), call("two"), "Ready.")
    assert chat.say("go") == "Ready."
    assert order == ["two", "one", "two"]
    assert roles(chat) == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [message.content for message in chat.messages if message.role == "tool"] == ["two", "one", "two"]


def test_python_functions_are_tools():
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Parameters
        ----------
        a, b : int
        """
        return a + b

    chat, _ = chat_with([add], call("add", a=2, b=40), "42!")
    assert chat.say("2 and 40?") == "42!"
    assert chat.messages[2].content == "42"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (call("nothing"), "there is no tool 'nothing': the tools are weather"),
        (call("weather", town="Bern"), "the argument city is missing"),
        (call("weather", city=3), "the argument city must be string"),
        ('<tool_call>\n{"name": "weather", "arguments": {"city" 3}}\n</tool_call>', "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_to_the_model(written, told):
    questions = []
    tool = weather()
    chat, results = chat_with([tool], written, "I see.", consent=asking([], questions))
    chat.say("warm?")
    assert chat.messages[2].content.startswith("error: ")
    assert told in chat.messages[2].content
    assert chat.messages[3].content == "I see."
    assert (tool.ran, questions, results[0].seconds) == ([], [], None)


def test_a_tool_that_fails_tells_the_model_why():
    def fail(arguments, stop):
        raise ValueError("no wind today")

    chat, _ = chat_with([FakeTool("fly", fail)], call("fly"), "Too bad.")
    chat.say("fly!")
    assert chat.messages[2].content == "error: ValueError: no wind today"


def test_nothing_runs_without_consent_and_the_reason_is_told():
    tool, questions = weather(), []
    answers = [ConsentAnswer(Decision.NO, "ask for Bonn"), ONCE]
    replies = call("weather", city="Bern"), call("weather", city="Bonn"), "Warm."
    chat, _ = chat_with([tool], *replies, consent=asking(answers, questions))
    chat.say("warm?")
    assert tool.ran == [{"city": "Bonn"}]
    assert chat.messages[2].content == "error: the user did not allow this call: ask for Bonn"
    assert [question.arguments["city"] for question in questions] == ["Bern", "Bonn"]


def test_ctrl_c_at_the_question_leaves_a_valid_conversation():
    chat, _ = chat_with([weather()], call("weather", city="Bern") * 2, "Warm.", consent=asking([KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):
        chat.say("warm?")
    assert [message.content for message in chat.messages[2:]] == [f"error: {STOPPED}"] * 2
    assert open_calls(chat.messages) == []
    # The model may still answer.
    assert "".join(delta.text for delta in chat.regenerate()) == "Warm."


def test_a_running_tool_is_stopped_first_and_the_turn_ends():
    pressed = threading.Event()

    def wait(arguments, stop):
        pressed.set()
        assert stop.wait(20)
        return ToolResult("half of it", is_error=True)

    chat, results = chat_with([FakeTool("wait", wait)], call("wait") * 2, "Never.")
    begun = monotonic()
    assert list(chat.stream("go", cancelled=pressed.is_set))[-1].text == ""
    assert monotonic() - begun < 5
    assert [found.result.text for found in results] == ["half of it", STOPPED]
    assert roles(chat) == ["user", "assistant", "tool", "tool"]
    assert open_calls(chat.messages) == []
    assert chat.undo() == "go"
    assert chat.messages == []


def test_a_python_function_that_ignores_the_stop_does_not_hold_the_chat():
    pressed, release = threading.Event(), threading.Event()

    def hang(arguments, stop):
        pressed.set()
        return str(release.wait(20))

    chat, results = chat_with([FakeTool("stuck", hang)], call("stuck"), "Never.")
    list(chat.stream("go", cancelled=pressed.is_set))
    release.set()
    assert "stopped" in results[0].result.text
    assert open_calls(chat.messages) == []


def test_ctrl_c_in_a_program_stops_the_tool_and_is_raised():
    def press(arguments, stop):
        signal.raise_signal(signal.SIGINT)
        stop.wait(20)
        return "never"

    chat, _ = chat_with([FakeTool("press", press)], call("press"), "Never.")
    with pytest.raises(KeyboardInterrupt):
        chat.say("go")
    assert chat.messages[-1].content == f"error: {STOPPED}"


def test_a_caller_that_stops_reading_leaves_no_call_open():
    chat, _ = chat_with([weather()], call("weather", city="Bern") + "!<", "Never.")
    for delta in (stream := chat.stream("warm?")):
        if chat.messages[-1].tool_calls:
            assert delta.text == "<"
            stream.close()
    assert roles(chat) == ["user", "assistant", "tool"]


def test_a_cut_reply_keeps_its_words_and_runs_nothing():
    tool = weather()
    written = "Let me see. " + call("weather", city="Bern")
    chat, _ = chat_with([tool], written, "Warm.")
    chat.request = chat.request.__class__(temperature=0.0, max_tokens=40, loop_stop=False)
    chat.say("warm?")
    assert (chat.messages[-1].content, chat.messages[-1].partial) == (written[:40], True)
    assert tool.ran == []
    chat.request = chat.request.__class__(temperature=0.0, loop_stop=False)
    assert "".join(delta.text for delta in chat.go_on()) == "Warm."
    assert tool.ran == [{"city": "Bern"}]
    assert chat.messages[1].content == "Let me see."


@pytest.mark.parametrize("length", [14, 30, 60, 75])
def test_a_cut_reply_shows_no_markup(length):
    chat, _ = chat_with([weather()], "Let me see. " + call("weather", city="Bern"))
    chat.request = chat.request.__class__(temperature=0.0, max_tokens=length, loop_stop=False)
    assert chat.say("warm?").strip() == "Let me see."


def test_rounds_are_bounded_and_the_end_is_valid():
    notices = []
    tool = FakeTool("again")
    chat, _ = chat_with([tool], *[call("again")] * 4, "Enough.", rounds=3)
    chat.on_notice = notices.append
    assert chat.say("go") == ""
    assert len(tool.ran) == 3
    assert chat.messages[-1].content == "error: not run: these were 3 rounds of calls"
    assert notices == ["these were 3 rounds of calls, the most for one message"]
    assert "".join(delta.text for delta in chat.regenerate()) == "Enough."
    assert chat.undo() == "go"
    assert chat.messages == []


def test_a_reply_that_is_written_again_asks_before_it_writes_again():
    """Consent for good, or by name, does not count for a call that is repeated."""
    tool, questions = FakeTool("save", writes=True), []
    answers = [ConsentAnswer(Decision.TOOL_IN_FOLDER), ConsentAnswer(Decision.NO)]
    replies = call("save"), "Saved.", call("save"), "Not again."
    chat, _ = chat_with([tool], *replies, consent=asking(answers, questions))
    chat.say("save it")
    assert len(questions) == 1
    assert "".join(delta.text for delta in chat.regenerate()) == "Not again."
    assert (len(questions), len(tool.ran)) == (2, 1)


def test_an_edited_message_asks_before_it_writes_again_and_a_new_one_does_not():
    tool, questions = FakeTool("save", writes=True), []
    answers = [ConsentAnswer(Decision.TOOL_IN_FOLDER), ConsentAnswer(Decision.NO)]
    replies = call("save"), "Saved.", call("save"), "Saved more.", call("save"), "Not again."
    chat, _ = chat_with([tool], *replies, consent=asking(answers, questions))
    chat.say("save it")
    chat.say("and more")
    assert (len(questions), len(tool.ran)) == (1, 2)
    list(chat.stream("other words", replaced=2))
    assert (len(questions), len(tool.ran)) == (2, 2)
    chat.undo()
    assert chat.messages[-1].content == "Saved more."


def test_tools_that_only_read_are_not_asked_about_again():
    tool, questions = weather(), []
    replies = call("weather", city="Bern"), "Warm.", call("weather", city="Bern"), "Still."
    chat, _ = chat_with([tool], *replies, consent=asking([ConsentAnswer(Decision.EXACTLY)], questions))
    chat.say("warm?")
    list(chat.regenerate())
    assert (len(questions), len(tool.ran)) == (1, 2)


def test_a_long_result_leaves_room_in_the_context():
    chat, _ = chat_with([weather("x" * 1500)], call("weather", city="Bern"), "Warm.", context_size=1000)
    assert chat.say("warm?") == "Warm."
    assert len(chat.messages[2].content) < 300
    assert "[1256 tokens are left out here]" in chat.messages[2].content


def test_results_that_do_not_fit_stay_and_can_be_taken_back():
    chat, _ = chat_with([FakeTool("w", lambda arguments, stop: "x" * 100)], call("w"), "Warm.", context_size=112)
    with pytest.raises(ContextError):
        chat.say("warm? " * 7 + "now.")
    assert roles(chat) == ["user", "assistant", "tool"]
    chat.undo()
    assert chat.messages == []


def test_the_tools_text_is_at_the_start_and_is_read_once():
    """The second turn's prefill, and that of each round, does not contain the tools' text again."""
    model = fake_model(Replies(call("weather", city="Bern"), "Warm.", "Bye."), context_size=4096, chunk_size=256)
    chat = Chat(model, temperature=0.0, tools=[weather()], system="Be brief.")
    chat.say("warm?")
    chat.say("thanks")
    begin = [BOS, *b"[weather]"]
    assert model.sequence.ids[: len(begin)] == begin
    prefills = [step for step in model.sequence.steps if len(step) > 1]
    texts = [bytes(token_id for token_id in step if token_id < 256) for step in prefills]
    assert [b"[weather]" in text for text in texts] == [True, *[False] * (len(texts) - 1)]
    assert any(b"thanks" in text for text in texts)


def test_a_chat_without_tools_is_as_it_was():
    written = call("weather", city="Bern")
    chat, _ = chat_with([], written)
    assert chat.say("warm?") == written
    assert chat.messages[-1] == Message("assistant", written)
    assert chat.model.sequence.ids[:2] == [BOS, USER]


def test_calls_are_held_to_the_schemas_by_a_grammar(monkeypatch):
    """With a grammar, a model that wants to write other arguments cannot."""
    pytest.importorskip("llguidance")
    monkeypatch.undo()
    tool = FakeTool("paint", colour="boolean")
    favoured = '<tool_call>\n{"name": "paint", "arguments": {"colour": xxxxx}}\n</tool_call>'
    chat, _ = chat_with([tool], favoured, "Painted.")
    chat.say("paint")
    assert [type(arguments["colour"]) for arguments in tool.ran] == [bool]


def test_a_grammar_that_cannot_be_used_is_told_once(monkeypatch):
    def refuse(self):
        raise SettingError("a schema or grammar needs llguidance: pip install llguidance")

    monkeypatch.setattr(ChatState, "call_constraint", property(refuse))
    notices = []
    chat, _ = chat_with([weather()], "One.", "Two.")
    chat.on_notice = notices.append
    chat.say("a")
    chat.say("b")
    assert notices == ["calls may be malformed: a schema or grammar needs llguidance: pip install llguidance"]


def test_a_summary_is_written_with_the_tools_in_view_and_without_their_grammar():
    chat, _ = chat_with([weather()], "One.", "Two.", "We spoke.")
    chat.say("a" * 400)
    chat.say("b")
    assert chat.compact() == "We spoke."
    assert bytes(token_id for token_id in chat.model.sequence.ids if token_id < 256).startswith(b"[weather]")


def test_strange_names_of_calls_can_be_saved():
    chat, _ = chat_with([weather()], call("x" * 400), "No.")
    chat.say("go")
    assert [one.name for one in chat.messages[1].tool_calls] == ["x" * 64]
    assert "there is no tool" in chat.messages[2].content


def test_the_ids_of_calls_differ_between_replies():
    chat, _ = chat_with([weather()], call("weather", city="Bern"), call("weather", city="Bonn"), "Warm.")
    chat.say("warm?")
    ids = [one.id for message in chat.messages for one in message.tool_calls]
    assert len(ids) == len(set(ids)) == 2
