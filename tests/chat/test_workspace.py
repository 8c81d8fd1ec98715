import pytest
from fake_desk import FakeDesk

from tinychat.chat.message import Draft, Message
from tinychat.chat.session_file import SavedSession
from tinychat.errors import SessionError, SettingError


class Clock:
    """Seconds that grow by `step` each time somebody looks."""

    def __init__(self, step=0.0):
        self.now, self.step = 100.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def saved_desk(*replies, clock=None, **settings):
    """Return a desk whose conversation is saved as it goes on, and a list of what each write saved."""
    desk = FakeDesk(*replies, clock=clock or Clock(), **settings)
    desk.workspace.autosave()
    writes = []
    write = desk.workspace.store.write

    def spy(name, session):
        writes.append([message.content for message in session.messages])
        write(name, session)

    desk.workspace.store.write = spy
    return desk, writes


def test_nothing_is_saved_before_the_first_message():
    desk, _ = saved_desk()
    desk.chat.clear()
    assert desk.workspace.store.names() == []
    assert desk.workspace.name is None


def test_a_turn_is_saved_when_it_begins_and_when_it_ends():
    desk, writes = saved_desk("Hello", "Fine")
    desk.chat.say("hi")
    assert writes == [["hi", ""], ["hi", "Hello"]]
    desk.chat.say("how?")
    assert writes[2:] == [["hi", "Hello", "how?", ""], ["hi", "Hello", "how?", "Fine"]]
    assert len(desk.workspace.store.names()) == 1


def test_a_conversation_whose_only_message_is_withdrawn_leaves_no_file():
    desk, _ = saved_desk("Hello")
    list(desk.chat.stream("hi", cancelled=lambda: True))
    assert desk.workspace.store.names() == []
    assert desk.chat.say("hi") == "Hello"
    desk.run("/undo")
    assert len(desk.workspace.store.names()) == 1
    asked, _ = saved_desk()
    asked.run("/save mine")
    list(asked.chat.stream("hi", cancelled=lambda: True))
    assert "mine" in asked.workspace.store.names()


def test_a_long_reply_is_saved_on_the_way():
    desk, writes = saved_desk("0123456789", clock=Clock(step=0.5))
    desk.chat.say("hi")
    on_the_way = [contents[1] for contents in writes[1:-1]]
    assert on_the_way == ["0123", "01234567"]


def test_a_reply_that_was_cut_off_is_kept_and_marked():
    desk, _ = saved_desk("Hello there", clock=Clock(step=3.0))
    pieces = desk.chat.stream("hi")
    for _ in range(4):
        next(pieces)
    # What a killed process leaves: the file as it is in the middle of the reply.
    again = FakeDesk("Hello again")
    lines = again.workspace.load(desk.workspace.name)
    assert again.chat.messages == [Message("user", "hi"), Message("assistant", "Hell", partial=True)]
    assert any("stopped in the middle" in line for line in lines)
    again.regenerate()
    assert again.spoken == ["hi", "Hello again"]


def test_a_message_without_reply_returns_to_the_prompt():
    desk, _ = saved_desk("Hello", "Never")
    desk.chat.say("hi")
    pending = desk.chat.stream("a long question")
    desk.chat.model.sequence._before_step = lambda count: (_ for _ in ()).throw(KeyboardInterrupt)
    desk.workspace.chat.on_change = lambda save=desk.chat.on_change: save() if desk.chat.messages[-1].partial else None
    with pytest.raises(KeyboardInterrupt):
        next(pending)
    again = FakeDesk("Hello")
    again.run(f"/load {desk.workspace.name}")
    assert again.spoken == ["hi", "Hello"]
    assert again.prefilled == "a long question"
    assert again.workspace.take_pending() == Draft()


@pytest.mark.parametrize(
    ("kind", "pending"), [("stream", Draft("a long question", replaced=1)), ("regenerate", Draft())]
)
def test_a_program_that_ends_while_a_prompt_is_read_leaves_the_message_and_the_old_turn(kind, pending):
    desk, _ = saved_desk("Hello", "Never")
    desk.chat.say("hi")
    desk.chat.model.sequence._before_step = lambda count: (_ for _ in ()).throw(SystemExit)
    with pytest.raises(SystemExit):
        next(desk.chat.regenerate() if kind == "regenerate" else desk.chat.stream("a long question", replaced=1))
    again = FakeDesk("Hello")
    again.run(f"/load {desk.workspace.name}")
    assert again.spoken == ["hi", "Hello"]
    assert again.draft == pending


def test_what_was_taken_back_can_be_brought_back_in_another_run():
    desk, _ = saved_desk("1", "2", "3")
    desk.chat.say("one")
    desk.chat.say("two")
    desk.regenerate()
    desk.run("/undo 2")
    again = FakeDesk()
    again.workspace.load(desk.workspace.name)
    assert again.spoken == ["one", "1"]
    again.run("/redo")
    assert again.spoken == ["one", "1", "two", "2"]
    again.run("/redo")
    assert again.spoken == ["one", "1", "two", "3"]
    again.run("/undo 3")
    assert again.spoken == []


def test_a_file_without_history_can_be_taken_back_turn_by_turn():
    desk = FakeDesk()
    turns = [Message("user", "one"), Message("assistant", "1"), Message("user", "two"), Message("assistant", "2")]
    desk.workspace.store.write("old", SavedSession(messages=turns))
    desk.workspace.load("old")
    desk.run("/undo")
    assert desk.spoken == ["one", "1"]


def test_system_and_settings_come_back():
    desk, _ = saved_desk("Hello", system="Be kind.")
    desk.chat.say("hi")
    desk.run("/set temperature 0.25")
    desk.run("/set max_tokens 9")
    desk.run("/set overflow shift")
    desk.run("/system Be brief.")
    again = FakeDesk()
    again.run(f"/load {desk.workspace.name}")
    assert (again.chat.system, again.chat.request.max_tokens, again.chat.overflow) == ("Be brief.", 9, "shift")
    assert again.chat.request == desk.chat.request


def test_a_loaded_conversation_goes_on_in_its_file():
    desk, _ = saved_desk("Hello")
    desk.chat.say("hi")
    again, _ = saved_desk("Fine")
    again.workspace.load(desk.workspace.name)
    again.chat.say("how?")
    assert again.workspace.store.names() == [desk.workspace.name]
    read = again.workspace.store.read(desk.workspace.name)
    assert [message.content for message in read.messages] == ["hi", "Hello", "how?", "Fine"]


def test_a_session_that_cannot_be_loaded_leaves_the_present_one():
    desk, _ = saved_desk("Hello")
    desk.chat.say("hi")
    name = desk.workspace.name
    desk.workspace.store.write("odd", SavedSession(system="x", settings={"temperature": -3.0}))
    desk.workspace.store.write("odder", SavedSession(settings={"temperature": 0.5, "no such": 1}))
    for wrong in ("none", "odd", "odder"):
        with pytest.raises((SessionError, SettingError)):
            desk.run(f"/load {wrong}")
        assert desk.spoken == ["hi", "Hello"]
        assert (desk.chat.system, desk.chat.request.temperature) == (None, 0.0)
        assert desk.workspace.name == name


def test_save_under_a_name_and_not_over_another():
    desk, _ = saved_desk("Hello", "Fine")
    desk.chat.say("hi")
    unnamed = desk.workspace.name
    assert desk.run("/save talk") == "saved as talk"
    desk.chat.say("how?")
    assert desk.run("/save") == "saved as talk"
    store = desk.workspace.store
    assert len(store.read("talk").messages) == 4
    assert len(store.read(unnamed).messages) == 2
    with pytest.raises(SessionError, match=r"there is a conversation [^ ]+ already"):
        desk.run(f"/save {unnamed}")
    with pytest.raises(SessionError, match="cannot name a conversation"):
        desk.run("/save a/b")
    assert desk.workspace.name == "talk"


def test_fork_leaves_the_conversation_behind():
    desk, _ = saved_desk("Hello", "Fine")
    desk.chat.say("hi")
    desk.run("/save talk")
    assert desk.run("/fork") == "talk stays as it is; you are now in talk-fork"
    desk.chat.say("how?")
    store = desk.workspace.store
    assert (len(store.read("talk").messages), len(store.read("talk-fork").messages)) == (2, 4)


def test_there_is_nothing_to_fork_at_first():
    with pytest.raises(SettingError, match="nothing to fork"):
        FakeDesk().run("/fork")


def test_sessions_lists_damaged_ones_too():
    desk, _ = saved_desk("Hello")
    assert desk.run("/sessions") == "no conversation is saved yet"
    desk.chat.say("what is a very long question that goes on and on?")
    desk.run("/save talk")
    (desk.workspace.store.folder / "broken.json").write_text("{")
    lines = desk.run("/sessions").splitlines()
    assert any(line.startswith("broken") and line.endswith("damaged") for line in lines)
    assert any("2 messages  what is a very long question" in line and "(this one)" in line for line in lines)


def test_a_disk_that_is_full_is_said_once_and_the_chat_goes_on():
    desk, _ = saved_desk("Hello", "Fine")

    def fail(name, session):
        raise SessionError("disk full")

    desk.workspace.store.write = fail
    assert desk.chat.say("hi") == "Hello"
    assert desk.chat.say("how?") == "Fine"
    assert desk.notices == ["this conversation is no longer saved: disk full"]


def test_the_same_session_with_another_model_says_so():
    desk, _ = saved_desk("Hello")
    desk.workspace.store.write("talk", SavedSession(model="big"))
    assert "it was begun with the model big" in desk.workspace.load("talk")


def test_what_one_context_forgot_another_may_hold():
    desk, _ = saved_desk(*"abcdef", context_size=32, overflow="drop")
    for message in ("one two", "three four", "five six"):
        desk.chat.say(message)
    assert desk.chat.forgotten > 0
    again = FakeDesk("g", chunk_size=256)
    again.workspace.load(desk.workspace.name)
    again.chat.say("seven")
    assert bytes(i for i in again.chat.model.sequence.ids if i < 256) == b"one twoathree fourbfive sixcseveng"


def test_a_reply_that_was_stopped_is_saved_at_once():
    desk, writes = saved_desk("Hello there")
    pieces = desk.chat.stream("hi", cancelled=lambda: len(desk.chat.messages[-1].content) >= 5)
    list(pieces)
    assert desk.chat.messages[-1].partial
    assert writes[-1] == desk.spoken
    assert len(writes[-1][1]) >= 5


def test_clear_leaves_the_conversation_in_its_file():
    desk, _ = saved_desk("Hello", "Fine")
    desk.chat.say("hi")
    kept = desk.workspace.name
    assert desk.run("/clear") == f"the conversation is forgotten; it stays saved as {kept}"
    desk.chat.say("how?")
    assert desk.workspace.name != kept
    assert [message.content for message in desk.workspace.store.read(kept).messages] == ["hi", "Hello"]


def test_two_chats_that_go_on_with_one_conversation_lose_nothing():
    desk, _ = saved_desk("Hello", "Mine")
    desk.chat.say("hi")
    name = desk.workspace.name
    other, _ = saved_desk("Theirs")
    other.workspace.load(name)
    other.chat.say("and?")
    desk.chat.say("and now?")
    assert desk.workspace.name == f"{name}-copy"
    assert any(f"another chat goes on with {name}" in notice for notice in desk.notices)
    read = desk.workspace.store.read
    assert [message.content for message in read(name).messages][2:] == ["and?", "Theirs"]
    assert [message.content for message in read(f"{name}-copy").messages][2:] == ["and now?", "Mine"]


def test_stop_texts_and_the_size_of_the_context_come_back():
    desk, _ = saved_desk("Hello", stop=["END", "\n\n"], context_size=64)
    desk.chat.say("hi")
    desk.run("/set context 100")
    again = FakeDesk("Fine", context_size=64)
    again.run(f"/load {desk.workspace.name}")
    assert again.chat.request.stop == ("END", "\n\n")
    assert again.chat.model.context_size == 100


def test_a_saved_model_folder_is_found_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    desk, _ = saved_desk("Hello", open_model=lambda name: desk.chat.model)
    desk.chat.say("hi")
    desk.run("/model ./m")
    assert desk.workspace.store.read(desk.workspace.name).model == str(tmp_path / "m")


def test_saving_by_hand_takes_up_the_saving_that_failed(tmp_path):
    desk, writes = saved_desk("Hello", "Fine")
    desk.workspace.store.folder = tmp_path / "file"
    (tmp_path / "file").touch()
    desk.chat.say("hi")
    assert any("no longer saved" in notice for notice in desk.notices)
    desk.workspace.store.folder = tmp_path / "folder"
    desk.run("/save")
    desk.chat.say("how?")
    assert writes[-1] == ["hi", "Hello", "how?", "Fine"]
