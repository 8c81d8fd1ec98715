"""Images of messages: read, shown to the model, named to people, saved."""

import os
from dataclasses import replace

import pytest
from fake_model import Replies, fake_model
from image_files import picture, picture_base64, picture_file, picture_url

pytest.importorskip("PIL")

from tinychat.conversation import contents
from tinychat.conversation.attachments import Attachment
from tinychat.conversation.contents import PlacedImage, SavedImage
from tinychat.conversation.conversation import Chat
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message, as_messages
from tinychat.conversation.one_shots import OneShots
from tinychat.conversation.session_file import SavedSession, title_of
from tinychat.conversation.store import SessionStore
from tinychat.errors import FieldError, SessionError
from tinychat.images.data_url import with_data_urls

CAT, DOG = picture("cat.png"), picture("dog.png", 1)


def text(words):
    return {"type": "text", "text": words}


def shown(image):
    return {"type": "image", "image": image}


def at(*places):
    return tuple(PlacedImage(offset, image) for offset, image in places)


def url(address):
    return {"type": "image_url", "image_url": address}


@pytest.mark.parametrize(
    ("parts", "content", "offsets"),
    [
        ([url({"url": picture_url(), "detail": "auto"}), text("What?")], "What?", [0]),
        ([text("A "), url(picture_url()), text(" or "), shown(picture_url(1)), text("?")], "A  or ?", [2, 6]),
        ([shown(DOG), shown(DOG.pixels)], "", [0, 0]),
        ([text("Hi "), {"type": "refusal", "refusal": "no"}], "Hi no", []),
        ([], "", []),
    ],
)
def test_parts_are_a_text_and_images_in_their_places(parts, content, offsets):
    (message,) = as_messages([{"role": "user", "content": parts}])
    assert (message.content, [placed.offset for placed in message.images]) == (content, offsets)
    assert all(placed.image in (CAT, DOG) for placed in message.images)
    (again,) = as_messages([message.as_dict()])
    assert again == message


@pytest.mark.parametrize(("detail", "found"), [(None, "high"), ("auto", "high"), ("high", "high"), ("low", "low")])
def test_an_image_has_the_detail_that_its_part_asks_for(detail, found):
    (message,) = as_messages([{"role": "user", "content": [url({"url": picture_url(), "detail": detail})]}])
    assert message.images == at((0, CAT.seen_in(found)))
    (again,) = as_messages(with_data_urls([message.as_dict()]))
    assert again == message


def test_another_detail_is_refused():
    with pytest.raises(FieldError, match=r"messages\[0\]\.content\[0\]\.image_url\.detail must be auto, low or high"):
        as_messages([{"role": "user", "content": [url({"url": picture_url(), "detail": "tiny"})]}])


def test_images_are_seen_in_the_detail_of_the_conversation_or_a_lower_one_of_their_own():
    chat = seeing_chat("Yes.", "No.", "Yes.")
    chat.say("?", [CAT, DOG.seen_in("low")])
    chat.image_detail = "low"
    chat.say("?", [CAT])
    details = [[placed.image.detail for placed in message.images] for message in chat.messages[::2]]
    assert details == [["high", "low"], ["low"]]
    assert CAT.seen_in("low") != CAT == CAT.seen_in("high")
    assert Chat(chat.model, image_detail="low").image_detail == "low"
    with pytest.raises(FieldError, match="image_detail must be one of high, low"):
        Chat(chat.model, image_detail="tiny")


def test_images_of_ollamas_clients_come_first():
    given = {"role": "user", "content": "What?", "images": [picture_base64(), picture_url(1)]}
    (message,) = as_messages([given])
    assert message == Message("user", "What?", images=at((0, CAT), (0, DOG)))
    assert message.as_dict()["content"] == [shown(CAT), shown(DOG), text("What?")]
    (alone,) = as_messages([{"role": "user", "images": [CAT]}])
    assert alone.as_dict()["content"] == [shown(CAT)]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": [url("https://example.com/cat.png")]}, "content[0].image_url must be a data: URL"),
        ({"content": [text("a"), url({})]}, "content[1].image_url must be a data: URL"),
        ({"content": [shown("/etc/passwd")]}, "content[0] must be a data: URL"),
        ({"content": [shown([[0]])]}, "content[0] must be an image"),
        ({"content": [shown(None)]}, "content[0] must be an image"),
        ({"content": [{"type": "input_audio"}]}, "content[0] must be a text or an image"),
        ({"content": [{"type": ["text"]}]}, "content[0] must be a text or an image"),
        ({"content": [{"type": "text", "text": 5}]}, "content[0] must be a text or an image"),
        ({"content": "a", "images": "aGk="}, "images must be a list of images"),
        ({"content": "a", "images": ["aGk="]}, "images[0] is not an image of a known format"),
        ({"content": "a", "images": ["/etc/passwd"]}, "images[0] is not an image"),
        ({"role": "assistant", "content": [shown(CAT)]}, "content[0] must be left out: only messages of the user"),
        ({"role": "system", "content": "a", "images": [CAT]}, "images[0] must be left out: only messages of the user"),
    ],
)
def test_what_is_no_image_is_named(message, problem):
    with pytest.raises(FieldError) as caught:
        as_messages([{"role": "user"} | message])
    assert str(caught.value).startswith(f"messages[0].{problem}")


@pytest.mark.parametrize("message", [{"content": [url("nonsense")]}, {"content": "", "images": ["nonsense"]}])
def test_images_for_a_model_that_sees_none_are_not_even_read(message):
    with pytest.raises(FieldError, match=r"messages\[1\].\w+\[0\] must be left out: this model reads text alone"):
        as_messages([{"role": "user", "content": "a"}, {"role": "user"} | message], sees_images=False)


# Else a body of 64 MiB with tiny ones would become prompts of 400 million ids.
@pytest.mark.parametrize(("limit", "most"), [("_MOST_PIXELS", 12), ("_MOST_IMAGES", 2)])
def test_all_images_together_have_a_limit(monkeypatch, limit, most):
    monkeypatch.setattr(contents, limit, most)
    asked = [{"role": "user", "content": "", "images": [CAT]}]
    assert len(as_messages(asked * 2)) == 2
    with pytest.raises(FieldError, match=r"messages\[2\].images\[0\] is one too many"):
        as_messages(asked * 3)


def test_a_person_reads_the_names():
    message = Message("user", "See and\nhere", images=at((0, CAT), (4, picture()), (7, DOG), (99, CAT)))
    assert message.shown == "[image cat.png] See [image] and[image dog.png]\nhere[image cat.png]"
    assert message.text == message.shown
    assert Message("user", "", images=at((0, CAT))).shown == "[image cat.png]"


def test_an_image_that_was_not_read_is_told_by_its_name():
    lost = SavedImage("0" * 64, "old.png")
    assert Message("user", "What?", images=at((0, lost))).as_dict()["content"] == "[image old.png] What?"
    both = Message("user", "What?", images=at((0, lost), (0, CAT)))
    assert both.as_dict()["content"] == [text("[image old.png] "), shown(CAT), text("What?")]


def test_a_title_leaves_attachments_out_and_names_images():
    attached = Attachment("notes", "long").content
    message = Message("user", f"{attached}\n\nWhat?", images=at((0, CAT)))
    assert title_of([message], 50) == "[image cat.png] What?"


def seeing_chat(*replies, **settings):
    return Chat(fake_model(Replies(*replies), sees_images=True, **settings), temperature=0.0)


@pytest.mark.parametrize(("images", "renderings"), [([CAT], 1), ([], 0)])
def test_ids_of_images_are_asked_for_at_each_reply(images, renderings, monkeypatch):
    # Those of a server's images are gone when it begins again; others, when later ones need the room.
    chat, rendered = seeing_chat("Yes.", "No."), []
    chat.say("What?", images)
    monkeypatch.setattr(
        chat.model, "chat_prompt", lambda *given, ask=chat.model.chat_prompt: rendered.append(1) or ask(*given)
    )
    assert "".join(delta.text for delta in chat.regenerate()) == "No."
    assert len(rendered) == renderings


def read_by(chat):
    return bytes(one for one in chat.model.sequence.ids if one < 256).decode()


def test_images_go_with_a_message(tmp_path):
    chat = seeing_chat("A cat.", "Yes.", "No.")
    chat.say("What?", [picture_file(tmp_path)])
    assert read_by(chat) == "(cat.png)What?A cat."
    assert chat.messages[0] == Message("user", "What?", images=at((0, CAT)))
    chat.say("Sure?", images=[picture("a", 2), str(picture_file(tmp_path, "dog.png", 1))])
    assert read_by(chat) == "(cat.png)What?A cat.(a)(dog.png)Sure?Yes."
    chat.undo()
    assert [message.content for message in chat.messages] == ["What?", "A cat."]
    chat.redo()
    assert chat.messages[2].images == at((0, picture("a", 2)), (0, DOG))
    list(chat.regenerate())
    assert read_by(chat).endswith("(a)(dog.png)Sure?No.")


def test_attachments_keep_their_order():
    chat = seeing_chat("Yes.")
    notes, cat = Attachment("notes", "x"), Attachment("cat.png", "", image=CAT)
    chat.attachments = [notes, cat, replace(notes, name="more")]
    chat.say("Same?", [DOG])
    assert chat.messages[0].shown == (
        "notes:\n```\nx\n```\n\n[image cat.png] more:\n```\nx\n```\n\n[image dog.png] Same?"
    )
    assert chat.attachments == []


def test_a_model_that_sees_none_gets_none():
    chat = Chat(fake_model(Replies("Yes.")), temperature=0.0)
    with pytest.raises(FieldError, match="images must be left out: this model reads text alone"):
        chat.say("What?", [CAT])
    with pytest.raises(FieldError, match=r"images /nowhere/cat\.png cannot be read: No such file"):
        chat.say("What?", ["/nowhere/cat.png"])
    assert chat.messages == []
    chat.say("Hi.")
    with pytest.raises(FieldError, match=r"messages\[0\].content has an image, which must be left out"):
        chat.model.chat_prompt([Message("user", "What?", images=at((0, CAT))).as_dict()])


def test_another_model_that_sees_none_reads_the_names():
    chat = seeing_chat("A cat.")
    chat.say("What?", [CAT])
    chat.model = fake_model(Replies("never", "Yes."))
    chat.say("Sure?")
    assert read_by(chat).startswith("[image cat.png] What?A cat.Sure?")


def test_a_summary_is_of_images_too():
    chat = seeing_chat("A cat that sleeps. " * 10, "Yes.", "Cat.", context_size=600)
    chat.say("What?", [CAT])
    chat.say("Sure?")
    assert chat.compact() == "Cat."
    assert not any(message.images for message in chat.messages)
    chat.undo()
    assert chat.messages[0].images == at((0, CAT))


def test_turns_that_are_dropped_are_named_with_their_images():
    chat, notices = seeing_chat("A cat.", "Yes.", context_size=110), []
    chat.overflow, chat.on_notice = "drop", notices.append
    chat.say("What is it?", [CAT])
    chat.say("Sure? " * 12)
    assert len(notices) == 1 and '("[image cat.png] What is it?")' in notices[0]


SAVED = SavedSession(
    messages=[Message("user", "What?", images=at((0, CAT), (5, DOG))), Message("assistant", "Pets.")],
    history=History((Change(0),), (Change(0, (Message("user", "Who?", images=at((0, picture("x", 9)))),)),)),
)


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "sessions")


def files_of(store):
    return sorted(path.name for path in (store.folder / "images").glob("*"))


def test_a_saved_conversation_has_its_images_in_files_of_their_own(store):
    store.write("pets", SAVED)
    written = {name: (store.folder / "images" / name).stat().st_mtime_ns for name in files_of(store)}
    assert set(written) == {CAT.digest, DOG.digest, picture(shade=9).digest}
    assert (store.folder / "pets.json").stat().st_size < 3000
    found = store.read("pets")
    assert found == SAVED and found.messages[0].images[0].image.name == "cat.png"
    store.write("pets", found)
    assert written == {name: (store.folder / "images" / name).stat().st_mtime_ns for name in files_of(store)}
    assert store.names() == ["pets"]
    assert [message.text for message in store.messages("pets")] == ["[image cat.png] What?[image dog.png]", "Pets."]
    assert store.about("pets").title == "[image cat.png] [image dog.png] What?"
    assert oct((store.folder / "images" / CAT.digest).stat().st_mode)[-3:] == "600"


def test_a_saved_image_keeps_its_detail(store):
    low = Message("user", "What?", images=at((0, CAT.seen_in("low")), (5, CAT)))
    store.write("pets", SavedSession(messages=[low]))
    assert store.read("pets").messages == [low]
    assert files_of(store) == [CAT.digest]
    (store.folder / "images" / CAT.digest).unlink()
    gone = store.read("pets")
    store.write("again", gone)
    assert [placed.image.detail for placed in store.read("again").messages[0].images] == ["low", "high"]


def test_a_conversation_without_images_is_written_in_the_earlier_format(store):
    store.write("plain", SavedSession(messages=[Message("user", "hi")]))
    store.write("pets", SAVED)
    begins = [(store.folder / f"{name}.json").read_text()[:14] for name in ("plain", "pets")]
    assert begins == ['{\n "format": 2', '{\n "format": 3']
    assert not store.messages("plain")[0].images


def test_images_go_with_the_last_conversation_that_has_them(store):
    other = SavedSession(messages=[Message("user", "Cat?", images=at((0, CAT)))])
    store.write("pets", SAVED)
    store.write("other", other)
    stale = store.folder / "images" / ("a" * 64)
    for age in (10, 7200):
        stale.write_bytes(b"x")
        os.utime(stale, (stale.stat().st_mtime - age,) * 2)
        store.write("pets", SAVED)
        store.delete("pets")
        assert files_of(store) == sorted([CAT.digest, *["a" * 64] * (age == 10)])
    store.rename("other", "renamed")
    assert store.read("renamed").messages == other.messages
    store.remove("renamed")
    assert files_of(store) == []


def test_an_image_that_is_gone_leaves_its_text(store):
    store.write("pets", SAVED)
    (store.folder / "images" / CAT.digest).unlink()
    (store.folder / "images" / DOG.digest).write_bytes(b"damaged")
    found = store.read("pets")
    assert found.messages[0].content == "What?"
    assert not found.messages[0].has_images
    lines = found.image_problems
    assert lines[0] == "the image cat.png cannot be read: No such file or directory; the model reads its name alone"
    assert lines[1].startswith("the image dog.png is not an image of a known format") and len(lines) == 2
    # Who finds the file again sees it again.
    store.write("pets", found)
    store.write("other", SAVED)
    assert store.read("pets").messages[0].images[0].image == CAT


def test_without_pillow_nothing_is_lost(store, monkeypatch):
    store.write("pets", SAVED)
    monkeypatch.setattr("tinychat.conversation.saved_images.find_spec", lambda name: None)
    (store.folder / "images" / CAT.digest).write_bytes(b"as if")
    with pytest.raises(SessionError):
        store.read("pets")
    assert [message.text for message in store.messages("pets")][1] == "Pets."


@pytest.mark.parametrize(
    "image",
    [5, {"offset": 0, "digest": "../../etc/passwd", "name": ""}, {"offset": "0", "digest": "0" * 64, "name": ""}],
)
def test_a_damaged_place_of_an_image_is_explained(store, image):
    store.write("pets", SAVED)
    path = store.folder / "pets.json"
    data = path.read_text()
    begin = data.index('"images": [') + len('"images": [')
    path.write_text(f"{data[:begin]}{str(image).replace(chr(39), chr(34))},{data[begin:]}")
    with pytest.raises(SessionError, match="its messages cannot be read"):
        store.read("pets")


def test_a_conversation_of_the_log_brings_its_images_along(tmp_path):
    log = OneShots(tmp_path)
    name = log.keep(SAVED)
    store = SessionStore(tmp_path / "sessions", log)
    found = store.read(name)
    assert found == SAVED
    store.write(name, found)
    log.delete(name)
    assert store.read(name) == SAVED and files_of(log) == []


def test_images_count_for_the_size_of_the_log(tmp_path, monkeypatch):
    log = OneShots(tmp_path)
    first = log.keep(SAVED)
    os.utime(log.folder / f"{first}.json", (1, 1))
    other = SavedSession(messages=[Message("user", "x", images=at((0, picture(shade=20))))])
    last = log.keep(other)
    monkeypatch.setattr("tinychat.conversation.one_shots.MOST_BYTES", log.size(first) + log.size(last) + 100)
    assert log.keep(other, last, log.revision(last)) == last
    assert log.names() == [last] and files_of(log) == [picture(shade=20).digest]
