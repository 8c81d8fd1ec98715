import pytest
from fake_loop import FakeLoop
from fake_model import Replies, fake_model

from tinychat.chat.draft import Draft
from tinychat.chat.workspace import Models, Workspace
from tinychat.conversation.messages import Message
from tinychat.conversation.session_file import SavedSession
from tinychat.errors import SessionError, SettingError


class Clock:
    """Seconds that grow by `step` each time somebody looks."""

    def __init__(self, step=0.0):
        self.now, self.step = 100.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def saved_loop(*replies, clock=None, **settings):
    """Return a loop whose conversation is saved as it goes on, and a list of what each write saved."""
    loop = FakeLoop(*replies, clock=clock or Clock(), **settings)
    loop.workspace.autosave()
    writes = []
    write = loop.workspace.store.write

    def spy(name, session):
        writes.append([message.content for message in session.messages])
        write(name, session)

    loop.workspace.store.write = spy
    return loop, writes


def test_nothing_is_saved_before_the_first_message():
    loop, _ = saved_loop()
    loop.chat.clear()
    assert loop.workspace.store.names() == []
    assert loop.workspace.name is None


def test_a_turn_is_saved_when_it_begins_and_when_it_ends():
    loop, writes = saved_loop("Hello", "Fine")
    loop.chat.say("hi")
    assert writes == [["hi", ""], ["hi", "Hello"]]
    loop.chat.say("how?")
    assert writes[2:] == [["hi", "Hello", "how?", ""], ["hi", "Hello", "how?", "Fine"]]
    assert len(loop.workspace.store.names()) == 1


def test_a_conversation_whose_only_message_is_withdrawn_leaves_no_file():
    loop, _ = saved_loop("Hello")
    list(loop.chat.stream("hi", cancelled=lambda: True))
    assert loop.workspace.store.names() == []
    assert loop.chat.say("hi") == "Hello"
    loop.run("/undo")
    assert len(loop.workspace.store.names()) == 1
    asked, _ = saved_loop()
    asked.run("/save mine")
    list(asked.chat.stream("hi", cancelled=lambda: True))
    assert "mine" in asked.workspace.store.names()


def test_a_long_reply_is_saved_on_the_way():
    loop, writes = saved_loop("0123456789", clock=Clock(step=0.5))
    loop.chat.say("hi")
    on_the_way = [contents[1] for contents in writes[1:-1]]
    assert on_the_way == ["0123", "01234567"]


def test_a_reply_that_was_cut_off_is_kept_and_marked():
    loop, _ = saved_loop("Hello there", clock=Clock(step=3.0))
    deltas = loop.chat.stream("hi")
    for _ in range(4):
        next(deltas)
    # What a killed process leaves: the file as it is in the middle of the reply.
    again = FakeLoop("Hello again")
    lines, _ = again.workspace.load(loop.workspace.name)
    assert again.chat.messages == [Message("user", "hi"), Message("assistant", "Hell", partial=True)]
    assert any("the last reply is incomplete" in line for line in lines)
    again.run("/regen")
    assert again.spoken == ["hi", "Hello again"]


def test_a_message_without_reply_returns_to_the_prompt():
    loop, _ = saved_loop("Hello", "Never")
    loop.chat.say("hi")
    pending = loop.chat.stream("a long question")
    loop.chat.model.sequence._before_step = lambda count: (_ for _ in ()).throw(KeyboardInterrupt)
    loop.workspace.chat.on_change = lambda save=loop.chat.on_change: save() if loop.chat.messages[-1].partial else None
    with pytest.raises(KeyboardInterrupt):
        next(pending)
    again = FakeLoop("Hello")
    again.run(f"/load {loop.workspace.name}")
    assert again.spoken == ["hi", "Hello"]
    assert again.prefilled == "a long question"


@pytest.mark.parametrize(
    ("kind", "pending"), [("stream", Draft("a long question", replaced=1)), ("regenerate", Draft())]
)
def test_a_program_that_ends_while_a_prompt_is_read_leaves_the_message_and_the_old_turn(kind, pending):
    loop, _ = saved_loop("Hello", "Never")
    loop.chat.say("hi")
    loop.chat.model.sequence._before_step = lambda count: (_ for _ in ()).throw(SystemExit)
    with pytest.raises(SystemExit):
        next(loop.chat.regenerate() if kind == "regenerate" else loop.chat.stream("a long question", replaced=1))
    again = FakeLoop("Hello")
    again.run(f"/load {loop.workspace.name}")
    assert again.spoken == ["hi", "Hello"]
    assert again.draft == pending


def test_what_was_taken_back_can_be_brought_back_in_another_run():
    loop, _ = saved_loop("1", "2", "3")
    loop.chat.say("one")
    loop.chat.say("two")
    loop.run("/regen")
    loop.run("/undo 2")
    again = FakeLoop()
    again.workspace.load(loop.workspace.name)
    assert again.spoken == ["one", "1"]
    again.run("/redo")
    assert again.spoken == ["one", "1", "two", "2"]
    again.run("/redo")
    assert again.spoken == ["one", "1", "two", "3"]
    again.run("/undo 3")
    assert again.spoken == []


def test_a_file_without_history_can_be_taken_back_turn_by_turn():
    loop = FakeLoop()
    turns = [Message("user", "one"), Message("assistant", "1"), Message("user", "two"), Message("assistant", "2")]
    loop.workspace.store.write("old", SavedSession(messages=turns))
    loop.workspace.load("old")
    loop.run("/undo")
    assert loop.spoken == ["one", "1"]


def test_system_and_settings_come_back():
    loop, _ = saved_loop("Hello", system="Be kind.")
    loop.chat.say("hi")
    loop.run("/set temperature 0.25")
    loop.run("/set max_tokens 9")
    loop.run("/set overflow shift")
    loop.run("/system Be brief.")
    again = FakeLoop()
    again.run(f"/load {loop.workspace.name}")
    assert (again.chat.system, again.chat.request.max_tokens, again.chat.overflow) == ("Be brief.", 9, "shift")
    assert again.chat.request == loop.chat.request


def test_a_loaded_conversation_goes_on_in_its_file():
    loop, _ = saved_loop("Hello")
    loop.chat.say("hi")
    again, _ = saved_loop("Fine")
    again.workspace.load(loop.workspace.name)
    again.chat.say("how?")
    assert again.workspace.store.names() == [loop.workspace.name]
    read = again.workspace.store.read(loop.workspace.name)
    assert [message.content for message in read.messages] == ["hi", "Hello", "how?", "Fine"]


def test_a_session_that_cannot_be_loaded_leaves_the_present_one():
    loop, _ = saved_loop("Hello")
    loop.chat.say("hi")
    name = loop.workspace.name
    loop.workspace.store.write("odd", SavedSession(system="x", settings={"temperature": -3.0}))
    loop.workspace.store.write("odder", SavedSession(settings={"temperature": 0.5, "no such": 1}))
    for wrong in ("none", "odd", "odder"):
        with pytest.raises((SessionError, SettingError)):
            loop.run(f"/load {wrong}")
        assert loop.spoken == ["hi", "Hello"]
        assert (loop.chat.system, loop.chat.request.temperature) == (None, 0.0)
        assert loop.workspace.name == name


def test_save_under_a_name_and_not_over_another():
    loop, _ = saved_loop("Hello", "Fine")
    loop.chat.say("hi")
    loop.run("/save first")
    assert loop.run("/save talk") == "saved as talk"
    loop.chat.say("how?")
    assert loop.run("/save") == "saved as talk"
    store = loop.workspace.store
    assert len(store.read("talk").messages) == 4
    assert len(store.read("first").messages) == 2
    with pytest.raises(SessionError, match=r"the conversation [^ ]+ exists already"):
        loop.run("/save first")
    with pytest.raises(SessionError, match="cannot name a conversation"):
        loop.run("/save a/b")
    assert loop.workspace.name == "talk"


def test_fork_leaves_the_conversation_behind():
    loop, _ = saved_loop("Hello", "Fine")
    loop.chat.say("hi")
    loop.run("/save talk")
    assert loop.run("/fork") == "talk is unchanged; this is now talk-fork"
    loop.chat.say("how?")
    store = loop.workspace.store
    assert (len(store.read("talk").messages), len(store.read("talk-fork").messages)) == (2, 4)


def test_there_is_nothing_to_fork_at_first():
    with pytest.raises(SettingError, match="the conversation is empty"):
        FakeLoop().run("/fork")


def test_sessions_lists_damaged_ones_too():
    loop, _ = saved_loop("Hello")
    assert loop.run("/sessions") == "no saved conversations yet"
    loop.chat.say("what is a very long question that goes on and on?")
    loop.run("/save talk")
    (loop.workspace.store.folder / "broken.json").write_text("{")
    lines = loop.run("/sessions").splitlines()
    assert any(line.startswith("broken") and line.endswith("damaged") for line in lines)
    assert any("2 messages  what is a very long question" in line and "(this one)" in line for line in lines)


def test_a_disk_that_is_full_is_said_once_and_the_chat_goes_on():
    loop, _ = saved_loop("Hello", "Fine")

    def fail(name, session):
        raise SessionError("disk full")

    loop.workspace.store.write = fail
    assert loop.chat.say("hi") == "Hello"
    assert loop.chat.say("how?") == "Fine"
    assert loop.notices == ["this conversation is no longer saved: disk full"]


def test_the_same_session_with_another_model_says_so():
    loop, _ = saved_loop("Hello")
    loop.workspace.store.write("talk", SavedSession(model="big"))
    assert "its model was big" in loop.workspace.load("talk")[0]
    loop.workspace = Workspace(loop.chat, loop.workspace.store, model="small")
    loop.workspace.store.write("talk", SavedSession(model=None))
    loop.workspace.models = Models(default=lambda: "smollm2-135m")
    assert "its model was smollm2-135m" in loop.workspace.load("talk")[0]


@pytest.mark.parametrize(
    ("had", "line"),
    [
        (64, "its context had 64 tokens, now 96"),
        (128, "its context had 128 tokens, as now"),
        (96, None),
    ],
)
def test_the_context_that_a_conversation_had_is_told(had, line):
    loop, _ = saved_loop("Hello", context_size=96)
    loop.workspace.store.write("talk", SavedSession(settings={"context": had}))
    assert [one for one in loop.workspace.load("talk")[0] if "context" in one] == ([line] if line else [])


def test_what_one_context_forgot_another_may_hold():
    loop, _ = saved_loop(*"abcdef", context_size=32, overflow="drop")
    for message in ("one two", "three four", "five six"):
        loop.chat.say(message)
    assert loop.chat.dropped > 0
    again = FakeLoop("g", chunk_size=256)
    again.workspace.load(loop.workspace.name)
    again.chat.say("seven")
    assert bytes(i for i in again.chat.model.sequence.ids if i < 256) == b"one twoathree fourbfive sixcseveng"


def test_a_reply_that_was_stopped_is_saved_at_once():
    loop, writes = saved_loop("Hello there")
    deltas = loop.chat.stream("hi", cancelled=lambda: len(loop.chat.messages[-1].content) >= 5)
    list(deltas)
    assert loop.chat.messages[-1].partial
    assert writes[-1] == loop.spoken
    assert len(writes[-1][1]) >= 5


def test_clear_leaves_the_conversation_in_its_file():
    loop, _ = saved_loop("Hello", "Fine")
    loop.chat.say("hi")
    kept = loop.workspace.name
    assert loop.run("/clear") == f"a new conversation begins; the previous one stays saved as {kept}"
    loop.chat.say("how?")
    assert loop.workspace.name != kept
    assert [message.content for message in loop.workspace.store.read(kept).messages] == ["hi", "Hello"]


def test_a_name_takes_the_place_of_an_automatic_one():
    loop, _ = saved_loop("Hello", "Fine")
    loop.chat.say("hi")
    loop.run("/save talk")
    assert loop.workspace.store.names() == ["talk"]
    loop.run("/save another")
    assert set(loop.workspace.store.names()) == {"talk", "another"}
    again, _ = saved_loop("Again")
    again.chat.say("hi")
    automatic = again.workspace.name
    later, _ = saved_loop("Later")
    later.workspace.load(automatic)
    later.run("/save mine")
    assert set(later.workspace.store.names()) == {"talk", "another", "mine"}


def test_a_copy_leaves_an_automatic_name():
    loop, _ = saved_loop("Hello")
    loop.chat.say("hi")
    automatic = loop.workspace.name
    loop.run("/fork")
    assert set(loop.workspace.store.names()) == {automatic, f"{automatic}-fork"}


def test_a_conversation_that_another_chat_goes_on_with_keeps_its_name():
    loop, _ = saved_loop("Hello")
    loop.chat.say("hi")
    automatic = loop.workspace.name
    other, _ = saved_loop("Theirs")
    other.workspace.load(automatic)
    other.chat.say("and?")
    loop.run("/save mine")
    assert set(loop.workspace.store.names()) == {automatic, "mine"}


def test_what_a_smaller_context_forgot_returns_in_a_larger_one():
    def small(_name):
        return fake_model(Replies("c", "d"), name="small", context_size=24)

    loop, _ = saved_loop(*"ab", *"ef", overflow="drop", open_model=small)
    usual = loop.chat.model
    for message in ("one two", "three four"):
        loop.chat.say(message)
    loop.run("/model small")
    loop.chat.say("five six")
    assert loop.chat.dropped == 4
    loop.workspace.models = Models(lambda name: usual)
    loop.run("/model usual")
    assert loop.chat.dropped == 0
    loop.chat.say("seven")
    assert bytes(i for i in usual.sequence.ids if i < 256) == b"one twoathree fourbfive sixcsevene"


def test_what_was_forgotten_for_lack_of_room_returns_with_the_room():
    loop, _ = saved_loop(*"abc", context_size=24, chunk_size=256, overflow="drop")
    for message in ("one two", "three four"):
        loop.chat.say(message)
    assert loop.chat.dropped == 2
    loop.run("/set context 200")
    loop.chat.say("five")
    assert bytes(i for i in loop.chat.model.sequence.ids if i < 256) == b"one twoathree fourbfivec"


def test_two_chats_that_go_on_with_one_conversation_lose_nothing():
    loop, _ = saved_loop("Hello", "Mine")
    loop.chat.say("hi")
    name = loop.workspace.name
    other, _ = saved_loop("Theirs")
    other.workspace.load(name)
    other.chat.say("and?")
    loop.chat.say("and now?")
    assert loop.workspace.name == f"{name}-copy"
    assert any(f"another chat has changed {name}" in notice for notice in loop.notices)
    read = loop.workspace.store.read
    assert [message.content for message in read(name).messages][2:] == ["and?", "Theirs"]
    assert [message.content for message in read(f"{name}-copy").messages][2:] == ["and now?", "Mine"]


def test_stop_texts_and_the_size_of_the_context_come_back():
    loop, _ = saved_loop("Hello", stop=["END", "\n\n"], context_size=64)
    loop.chat.say("hi")
    loop.run("/set context 100")
    again = FakeLoop("Fine", context_size=64)
    again.run(f"/load {loop.workspace.name}")
    assert again.chat.request.stop == ("END", "\n\n")
    assert again.chat.model.context_size == 100


def test_a_saved_model_folder_is_found_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    loop, _ = saved_loop("Hello", open_model=lambda name: loop.chat.model)
    loop.chat.say("hi")
    loop.run("/model ./m")
    assert loop.workspace.store.read(loop.workspace.name).model == str(tmp_path / "m")


def test_saving_by_hand_takes_up_the_saving_that_failed(tmp_path):
    loop, writes = saved_loop("Hello", "Fine")
    loop.workspace.store.folder = tmp_path / "file"
    (tmp_path / "file").touch()
    loop.chat.say("hi")
    assert any("no longer saved" in notice for notice in loop.notices)
    loop.workspace.store.folder = tmp_path / "folder"
    loop.run("/save")
    loop.chat.say("how?")
    assert writes[-1] == ["hi", "Hello", "how?", "Fine"]
