import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_loop import FakeLoop
from fake_model import ASSISTANT, BOS, USER, Replies, fake_model

from tinychat.chat.commands import COMMANDS, complete_command
from tinychat.chat.messages import Attachment, Draft
from tinychat.errors import ContextError, SettingError, StoreError, TextError


def loop_after(*turns, **settings):
    """Return a loop after these (message, reply) turns, with spare replies "again" behind them."""
    loop = FakeLoop(*(reply for _, reply in turns), "again", "once more", **settings)
    for message, _ in turns:
        loop.chat.say(message)
    return loop


README = Path(__file__).parents[2] / "README.md"
TWO_TURNS = (("one", "1"), ("two", "2"))


def test_the_table_is_complete():
    wanted = (
        "help exit clear regen undo redo edit retry system set show save load sessions fork model "
        "file paste detach copy export stats context tokens why multiline"
    )
    assert set(COMMANDS) == set(wanted.split())


def test_every_command_is_explained_in_a_line():
    for command in COMMANDS.values():
        assert command.help[0].isupper() and not command.help.endswith(".")
        assert len(f"{command.usage:<18}{command.help}") <= 80


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.needs_argument])
def test_a_missing_argument_is_asked_for(name):
    with pytest.raises(SettingError, match=f"/{name} needs an argument: type /{name} "):
        FakeLoop().run(f"/{name} ")


def test_exit_leaves():
    loop = FakeLoop()
    loop.run("/exit")
    assert loop.left


def test_undo_takes_back_several_turns():
    loop = loop_after(*TWO_TURNS, ("three", "3"))
    assert loop.run("/undo 2") == "taken back: two"
    assert loop.spoken == ["one", "1"]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [("0", "is not a number of steps"), ("x", "is not a number of steps"), ("3", "give a number from 1 to 2")],
)
def test_undo_of_a_wrong_number_changes_nothing(argument, complaint):
    loop = loop_after(*TWO_TURNS)
    with pytest.raises(SettingError, match=complaint):
        loop.run(f"/undo {argument}")
    assert loop.spoken == ["one", "1", "two", "2"]


def test_edit_puts_the_message_into_the_prompt_and_takes_nothing_back():
    loop = loop_after(*TWO_TURNS)
    loop.run("/edit")
    assert loop.draft == Draft("two", replaced=1)
    loop.run("/edit 2")
    assert loop.draft == Draft("one", replaced=2)
    assert loop.spoken == ["one", "1", "two", "2"]
    for wrong in ("/edit 3", "/edit x"):
        with pytest.raises(SettingError, match=r"give a number from 1 to 2|is not a number of turns"):
            loop.run(wrong)


def test_an_edited_turn_runs_only_what_is_new():
    loop = loop_after(("a long beginning", "yes"), ("two", "2"))
    assert "".join(piece.text for piece in loop.chat.stream("twi", replaced=1)) == "again"
    summary = loop.chat.summary
    assert summary.prompt_tokens - summary.reused_tokens == len("i") + 1


def test_undo_and_redo_walk_through_all_that_was():
    loop = loop_after(*TWO_TURNS)
    loop.regenerate()
    list(loop.chat.stream("three", replaced=2))
    states = [["three", "once more"], ["one", "1", "two", "again"], ["one", "1", "two", "2"], ["one", "1"], []]
    said = ["back again: again", "back again: 2", "taken back: two", "taken back: one"]
    assert loop.spoken == states[0]
    for state, notice in zip(states[1:], said, strict=True):
        assert loop.run("/undo") == notice
        assert loop.spoken == state
    with pytest.raises(SettingError, match="nothing to take back"):
        loop.run("/undo")
    loop.run("/redo 2")
    assert loop.spoken == states[2]
    with pytest.raises(SettingError, match="give a number from 1 to 2"):
        loop.run("/redo 3")
    loop.run("/redo 2")
    assert loop.spoken == states[0]
    with pytest.raises(SettingError, match="nothing to bring back"):
        loop.run("/redo")
    assert loop.run("/undo 4") == "taken back: three"
    assert loop.spoken == []


def test_a_new_message_ends_what_can_be_brought_back_and_a_withdrawn_one_does_not():
    loop = loop_after(*TWO_TURNS)
    loop.run("/undo")
    list(loop.chat.stream("three", cancelled=lambda: True))
    loop.run("/redo")
    loop.run("/undo")
    loop.chat.say("three")
    with pytest.raises(SettingError, match="nothing to bring back"):
        loop.run("/redo")
    loop.run("/clear")
    with pytest.raises(SettingError, match="nothing to take back"):
        loop.run("/undo")


def test_retry_samples_differently_once():
    loop = loop_after(*TWO_TURNS)
    seen = []
    reply = loop.chat.model.reply
    loop.chat.model.reply = lambda prompt, request, **calls: seen.append(request) or reply(prompt, request, **calls)
    loop.run("/retry temperature=1.5 top-k=3")
    assert (seen[0].temperature, seen[0].top_k) == (1.5, 3)
    assert loop.spoken[-1] == "again"
    assert (loop.chat.request.temperature, loop.chat.request.top_k) == (0.0, 40)


@pytest.mark.parametrize(("usual", "once"), [(0.0, 1.0), (0.8, 1.0), (1.0, 1.3), (1.5, 1.8)])
def test_a_bare_retry_is_freer_once_and_says_so(usual, once):
    loop = loop_after(*TWO_TURNS)
    loop.chat.request = replace(loop.chat.request, temperature=usual)
    seen = []
    reply = loop.chat.model.reply
    loop.chat.model.reply = lambda prompt, request, **calls: seen.append(request) or reply(prompt, request, **calls)
    assert loop.run("/retry") == f"writing it again with temperature={once:g}, this once"
    assert seen[0].temperature == once
    assert (loop.spoken[-1], loop.chat.request.temperature) == ("again", usual)


def test_a_bare_retry_stays_in_range():
    loop = loop_after(*TWO_TURNS)
    loop.chat.request = replace(loop.chat.request, temperature=100.0)
    assert "temperature=100," in loop.run("/retry")


def test_a_bare_retry_of_nothing_is_an_error_alone():
    loop = FakeLoop()
    with pytest.raises(SettingError, match="no reply yet"):
        loop.run("/retry")
    assert loop.notices == []


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("temperature", "sets nothing: type KEY=VALUE"),
        ("temprature=1", "there is no setting temprature: did you mean temperature?"),
        ("temperature=hot", "temperature must be a number, not 'hot'"),
        ("temperature=-1", "must be between 0 and 100"),
        ("max_tokens=3", "max_tokens is not a setting of the sampler: use /set max_tokens"),
    ],
)
def test_a_wrong_retry_keeps_the_reply(argument, complaint):
    loop = loop_after(*TWO_TURNS)
    with pytest.raises(SettingError) as caught:
        loop.run(f"/retry {argument}")
    assert complaint in str(caught.value)
    assert loop.spoken[-1] == "2"


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("temperature 0.3", "temperature     0.3"),
        ("top-k=5", "top_k           5"),
        ("seed none", "seed            none"),
        ("max_tokens 7", "max_tokens      7"),
        ("max_tokens none", "max_tokens      none"),
        ("overflow shift", "overflow        shift"),
        ("think hide", "think           hide"),
    ],
)
def test_set_changes_and_shows(argument, shown):
    assert shown in FakeLoop().run(f"/set {argument}").splitlines()


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("temperature", "temperature to what? Type /set KEY VALUE"),
        ("colour red", "there is no setting colour: choose one of temperature"),
        ("max_tokens many", "max_tokens must be a whole number or none"),
        ("max_tokens 0", "must be 1 or more"),
        ("overflow spill", "overflow must be one of stop, drop, shift, not spill"),
        ("think hard", "think must be one of show, hide, not 'hard'"),
        ("top_k 1.5", "top_k must be a whole number"),
        ("context much", "context must be a whole number of tokens, not 'much'"),
        ("context 0", "context 0 is out of range"),
        ("temperature nan", "must be between 0 and 100"),
    ],
)
def test_set_refuses_in_one_line(argument, complaint):
    with pytest.raises(SettingError) as caught:
        FakeLoop().run(f"/set {argument}")
    assert complaint in str(caught.value)


def test_a_conversation_that_outgrows_its_context_goes_on_in_a_larger_one():
    loop = FakeLoop("Yes.", "No.", context_size=24, overflow="stop")
    loop.chat.say("Is it long?")
    with pytest.raises(ContextError):
        loop.chat.say("And is it long now?")
    assert "context         100" in loop.run("/set context 100").splitlines()
    assert loop.chat.say("And is it long now?") == "No."
    assert loop.chat.summary.reused_tokens > 0


def test_show_tells_all():
    lines = FakeLoop(system="Be kind.", stop="END").run("/show").splitlines()
    assert "model           fake" in lines
    assert "system          Be kind." in lines
    assert "stop            'END'" in lines
    assert "session         not saved yet" in lines


def test_multiline_changes_and_changes_back():
    loop = FakeLoop()
    assert "Enter begins a new line" in loop.run("/multiline")
    assert loop.run("/multiline") == "Enter sends"


def test_a_file_goes_with_the_next_message_once(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("first\n```\nsecond\n")
    loop = FakeLoop("Read.", "Yes.")
    assert loop.run(f"/file {path}") == "notes.txt (17 tokens) goes with your next message"
    loop.chat.say("Summarise.")
    assert loop.spoken[0] == "notes.txt:\n````\nfirst\n```\nsecond\n````\n\nSummarise."
    loop.chat.say("Sure?")
    assert loop.spoken[2] == "Sure?"


def test_a_text_is_attached_once_and_anew_when_it_has_changed(tmp_path):
    path = tmp_path / "notes.txt"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("old")
    loop = FakeLoop()
    assert loop.run("/file") == "nothing is attached to your next message"
    path.write_text("old")
    loop.run(f"/file {path}")
    assert loop.run(f"/file {path}") == "notes.txt is attached already"
    path.write_text("newer")
    loop.run(f"/file {path}")
    loop.run(f"/file {tmp_path / 'other' / 'notes.txt'}")
    assert loop.run("/file").splitlines() == ["1  notes.txt (5 tokens)", "2  notes.txt (3 tokens)"]
    assert "type /detach NAME" in loop.run("/detach")
    assert complete_command(loop, "/detach no") == ["notes.txt", "notes.txt"]
    for wrong in ("/detach 3", "/detach 0", "/detach else"):
        with pytest.raises(SettingError, match="is not attached"):
            loop.run(wrong)
    assert loop.run("/detach 2") == "notes.txt no longer goes with your next message"
    assert [attachment.text for attachment in loop.chat.attachments] == ["newer"]
    loop.run("/detach")
    with pytest.raises(SettingError, match="there is no attachment"):
        loop.run("/detach")


def test_a_withdrawn_message_leaves_its_attachments():
    loop = FakeLoop("One")
    loop.chat.attachments = [Attachment("notes", "text")]
    list(loop.chat.stream("hi", cancelled=lambda: True))
    assert loop.chat.attachments == [Attachment("notes", "text")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "is no file"), (b"\xff\xfe", "is no UTF-8 text"), (b"  \n", "is empty")],
)
def test_a_file_that_cannot_be_sent(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    loop = FakeLoop()
    with pytest.raises(SettingError, match=complaint):
        loop.run(f"/file {tmp_path / 'file'}")
    assert loop.chat.attachments == []


def test_export_as_markdown_and_json(tmp_path):
    loop = loop_after(("Hi 😀", "Hello"), system="Be kind.")
    loop.chat.messages[-1].partial = True
    loop.run(f"/export {tmp_path / 'talk.md'}")
    assert (tmp_path / "talk.md").read_text(encoding="utf-8") == (
        "# Conversation with fake\n\n## System\n\nBe kind.\n\n## You\n\nHi 😀\n\n## Model (stopped)\n\nHello\n"
    )
    loop.run(f"/export {tmp_path / 'talk.json'}")
    document = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert document["model"] == "fake"
    assert document["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi 😀"},
        {"role": "assistant", "content": "Hello"},
    ]


def test_an_export_that_fails_leaves_no_file(tmp_path):
    loop = FakeLoop("a reply")
    loop.chat.say("hello")
    loop.chat.messages[0].content = "x" * 100_000
    resource = pytest.importorskip("resource", reason="no limit stands for a full disk here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(SettingError, match=r"talk\.md cannot be written: File too large"):
            loop.run(f"/export {tmp_path / 'talk.md'}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_export_overwrites_nothing_and_knows_two_formats(tmp_path):
    loop = loop_after(("Hi", "Hello"))
    path = tmp_path / "talk.md"
    path.write_text("precious")
    with pytest.raises(SettingError, match="exists already"):
        loop.run(f"/export {path}")
    assert path.read_text() == "precious"
    with pytest.raises(SettingError, match=r"let it end in \.md or \.json"):
        loop.run(f"/export {tmp_path / 'talk.pdf'}")
    with pytest.raises(SettingError, match="cannot be written"):
        loop.run(f"/export {tmp_path / 'no' / 'folder' / 'talk.md'}")


def test_context_counts_what_the_model_sees():
    loop = loop_after(*TWO_TURNS, system="Be kind.")
    lines = loop.run("/context").splitlines()
    assert lines[0].startswith("23 of 256 tokens in use, 233 left; when full: stop")
    assert lines[1:] == [
        "     8  system     Be kind.",
        "     3  user       one",
        "     1  assistant  1",
        "     3  user       two",
        "     1  assistant  2",
    ]


def test_context_of_an_empty_conversation():
    assert FakeLoop().run("/context").startswith("0 of 256 tokens in use")


def test_tokens_of_a_text():
    assert FakeLoop().run("/tokens hé") == "3 tokens: 'h' 104  'Ã' 195  '©' 169"


def test_why_shows_the_candidates_of_the_last_tokens():
    loop = loop_after(("spell", "abc"))
    lines = loop.run("/why 2").splitlines()
    assert [line.split("  of  ")[0] for line in lines] == ["'b' 100.0 %", "'c' 100.0 %"]
    assert lines[0].split("  of  ")[1].startswith("'b' 100.0 %  ")


def test_why_runs_no_more_than_it_shows():
    loop = loop_after(("a question of some length", "abcdefgh"))
    loop.chat.model.sequence.steps.clear()
    loop.run("/why 3")
    assert [len(step) for step in loop.chat.model.sequence.steps] == [1, 1, 1]


def test_why_without_a_reply_and_with_a_wrong_number():
    with pytest.raises(SettingError, match="no reply yet"):
        FakeLoop().run("/why")
    with pytest.raises(SettingError, match="is not a number of tokens"):
        loop_after(*TWO_TURNS).run("/why often")


def test_another_model_goes_on():
    other = fake_model(Replies("I am new."), name="other")
    loop = loop_after(*TWO_TURNS, open_model={"other": other}.__getitem__)
    assert loop.run("/model other").startswith("other goes on from here")
    assert loop.chat.say("who?") == "I am new."
    assert loop.spoken[:2] == ["one", "1"]


def test_another_model_without_template_says_so():
    plain = fake_model(Replies(), name="plain", has_template=False)
    said = FakeLoop(open_model={"plain": plain}.__getitem__).run("/model plain")
    assert said.splitlines()[1:] == ["this model has no chat template: it continues a plain dialogue instead"]


def test_a_model_that_cannot_be_opened_leaves_the_old_one():
    def refuse(name):
        raise StoreError(f"no model {name}")

    loop = FakeLoop("Still here.", open_model=refuse)
    with pytest.raises(StoreError):
        loop.run("/model other")
    assert loop.chat.say("who?") == "Still here."


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("/re", ["/regen", "/retry", "/redo"]),
        ("/set te", ["temperature"]),
        ("/set overflow s", ["stop", "shift"]),
        ("/set think ", ["show", "hide"]),
        ("/retry top_k=3 mi", ["min_p="]),
        ("/retry te", ["temperature="]),
        ("/load ", ["first"]),
        ("/clear a", []),
        ("/nonsense ", []),
    ],
)
def test_completion(line, candidates):
    loop = loop_after(*TWO_TURNS)
    loop.run("/save first")
    assert complete_command(loop, line) == candidates


def test_paths_are_completed(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "notes" / "two words").touch()
    (tmp_path / ".hidden").touch()
    loop, start = FakeLoop(), f"{tmp_path}/"
    assert complete_command(loop, f"/file {start}") == [f"{start}notes/", f"{start}notes.txt"]
    assert complete_command(loop, f"/file {start}.h") == [f"{start}.hidden"]
    assert complete_command(loop, f"/file {start}notes/two w") == ["words"]
    assert complete_command(loop, f"/file {start}none/x") == []


def test_the_readme_lists_every_command():
    section = README.read_text(encoding="utf-8").partition("| command | |")[2].partition("\n\n")[0]
    listed = re.findall(r"`/(\w+)((?: [^`]+)?)`", section)
    assert {name: argument.strip() for name, argument in listed} == {
        name: command.argument for name, command in COMMANDS.items()
    }


def test_a_file_that_is_too_long_can_be_taken_back(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * 500)
    loop = FakeLoop("Yes.", context_size=200)
    loop.run(f"/file {path}")
    with pytest.raises(ContextError):
        loop.chat.say("Is it long?")
    assert loop.run("/file none") == "nothing goes with your next message"
    assert loop.chat.say("hi") == "Yes."


def test_clear_frees_the_context_keeps_the_cache_and_drops_what_waits():
    loop = FakeLoop("Yes.", context_size=200)
    loop.chat.say("hi")
    loop.chat.attachments = [Attachment("a", "b")]
    loop.run("/clear")
    assert loop.chat.attachments == []
    assert loop.chat.model.sequence.ids == [BOS, USER, *b"hi", ASSISTANT, *b"Yes."]
    assert "context: 0 of 200 tokens" in loop.run("/stats")
    loop.run("/set context 5")
    assert loop.chat.model.context_size == 5


def test_a_template_that_refuses_a_lone_system_prompt_is_counted_all_the_same():
    def refuse(messages):
        raise TextError("a message must come first")

    loop = FakeLoop(system="Be kind.")
    loop.chat.prompt = refuse
    assert "context: 8 of 256 tokens" in loop.run("/stats")


def test_a_home_that_nobody_has_is_an_error_in_one_line():
    loop = FakeLoop("Hello")
    loop.chat.say("hi")
    for command in ("/file ~nobody-has-this/x", "/export ~nobody-has-this/x.md"):
        with pytest.raises(SettingError, match="~nobody-has-this"):
            loop.run(command)


def test_a_seed_is_used_as_it_is_given():
    loop = FakeLoop("a", "b", "c", "d", "e", seed=5)
    seeds = []
    for line in ("one", "two"):
        loop.chat.say(line)
        seeds.append(loop.chat.summary.seed)
    for line in ("/retry seed=47", "/regen"):
        loop.run(line)
        seeds.append(loop.chat.summary.seed)
    loop.run("/set seed 47")
    loop.run("/regen")
    seeds.append(loop.chat.summary.seed)
    assert seeds == [5, 6, 47, 8, 47]
