"""Images in the chat: /image, /edit, /model, exports and resumed conversations."""

import json
import time

import pytest
from fake_loop import FakeLoop, Recorder, Script
from fake_model import Replies, fake_model
from image_files import picture, picture_file, picture_url

pytest.importorskip("PIL")

from tinychat.chat.repl import Repl
from tinychat.chat.workspace import Models, Workspace, resumed
from tinychat.conversation.contents import PlacedImage
from tinychat.conversation.conversation import Chat
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message
from tinychat.conversation.session_file import SavedSession
from tinychat.errors import SettingError


def seeing_loop(*replies, **settings):
    return FakeLoop(model=fake_model(Replies(*replies), sees_images=True), **settings)


def test_an_image_goes_with_the_next_message_once(tmp_path):
    loop = seeing_loop("A cat.", "Yes.")
    assert loop.run("/image") == "nothing is attached"
    assert loop.run(f"/image {picture_file(tmp_path)}") == "attached cat.png (9 tokens)"
    assert loop.run(f"/image {tmp_path / 'cat.png'}") == "cat.png is attached already"
    loop.run(f"/image {picture_file(tmp_path, 'dog.png', 1)}")
    assert loop.run("/file").splitlines() == ["1  cat.png (9 tokens)", "2  dog.png (9 tokens)"]
    assert "cat.png, dog.png" in loop.run("/show")
    assert loop.run("/detach dog.png") == "removed dog.png"
    loop.chat.say("What?")
    assert loop.chat.messages[0].shown == "[image cat.png] What?"
    loop.chat.say("Sure?")
    assert loop.chat.messages[2].shown == "Sure?"
    rows = [line.split()[:3] for line in loop.run("/context").splitlines()]
    assert ["9", "image", "cat.png"] in rows and ["5", "user", "What?"] in rows


def test_images_are_attached_in_the_present_detail(tmp_path):
    loop = seeing_loop("A cat.")
    loop.run("/set image_detail low")
    loop.run(f"/image {picture_file(tmp_path)}")
    loop.run("/set image_detail high")
    loop.run(f"/image {picture_file(tmp_path, 'dog.png', 1)}")
    loop.chat.say("What?")
    assert [placed.image.detail for placed in loop.chat.messages[0].images] == ["low", "high"]


def test_patterns_and_folders_of_images(tmp_path, monkeypatch):
    for shade, name in enumerate(["a.png", "b.png"]):
        picture_file(tmp_path, name, shade)
    (tmp_path / "notes.txt").write_text("text")
    loop = seeing_loop()
    monkeypatch.chdir(tmp_path)
    assert loop.run("/image *") == "attached 2 files (14 tokens); 1 skipped, which hold no image"
    loop.run("/detach all")
    loop.run(f"/image {tmp_path}")
    assert len(loop.chat.attachments) == 2
    assert loop.candidates(f"/image {tmp_path}/n") == [f"{tmp_path}/notes.txt"]
    with pytest.raises(SettingError, match=r"image notes\.txt is not an image of a known format"):
        loop.run(f"/image {tmp_path}/notes.txt")
    with pytest.raises(SettingError, match=r"nowhere\.png cannot be read: No such file"):
        loop.run("/image nowhere.png")
    with pytest.raises(SettingError, match="is a URL: download it"):
        loop.run("/image https://example.com/cat.png")
    for number in range(17):
        picture_file(tmp_path, f"{number}.png", number)
    with pytest.raises(SettingError, match="has more than 16 image files"):
        loop.run(f"/image {tmp_path}")
    assert len(loop.chat.attachments) == 2


def test_a_model_that_sees_none_gets_no_image(tmp_path):
    loop = FakeLoop("Yes.")
    with pytest.raises(SettingError, match="fake reads text alone: /model NAME"):
        loop.run(f"/image {picture_file(tmp_path)}")
    assert loop.chat.attachments == []
    assert loop.run("/image") == "nothing is attached"


def test_an_image_that_does_not_fit_is_refused(tmp_path):
    loop = FakeLoop(model=fake_model(Replies(), sees_images=True, context_size=40))
    path = picture_file(tmp_path, "a-photo-with-a-name-that-is-too-long.png")
    with pytest.raises(SettingError, match="has 42 tokens, which do not fit into the context of 40"):
        loop.run(f"/image {path}")


def test_another_model_is_told_of_the_images_by_name():
    loop = seeing_loop("A cat.", open_model=lambda name: fake_model(Replies("a", "Yes."), name=name))
    loop.chat.say("What?", [picture("cat.png")])
    assert "blind reads text alone: it does not see the images of this conversation" in loop.run("/model blind")


def test_an_export_has_the_images(tmp_path):
    loop = seeing_loop("A cat.")
    loop.chat.say("What?", [picture("cat.png")])
    loop.run(f"/export {tmp_path / 'talk.md'}")
    assert "## You\n\n[image cat.png] What?" in (tmp_path / "talk.md").read_text()
    loop.run(f"/export {tmp_path / 'talk.json'}")
    document = json.loads((tmp_path / "talk.json").read_text())
    assert document["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": picture_url()}}


def typed(lines, *replies, model=None, interactive=True):
    """Type the lines into a chat with a model that sees; return its loop."""
    chat = Chat(model or fake_model(Replies(*replies), sees_images=True), temperature=0.0)
    loop = Repl(chat, Script(lines, interactive), Recorder(), Workspace(chat, models=Models()))
    chat.on_notice = loop.notice
    loop.run()
    return loop


def shown_of(loop):
    return [message.shown for message in loop.chat.messages]


def test_an_edited_message_keeps_its_images(tmp_path):
    path = picture_file(tmp_path)
    loop = typed([f"/image {path}", "What?", "/edit", "Who?"], "A cat.", "Felix.")
    assert shown_of(loop) == ["[image cat.png] Who?", "Felix."]
    loop = typed([f"/image {path}", "What?", "/edit", "/stats", "Who?"], "A cat.", "Felix.")
    assert shown_of(loop) == ["[image cat.png] What?", "A cat.", "Who?", "Felix."]


def test_a_message_without_a_reply_keeps_its_images(tmp_path):
    """It comes back with the text: of one that does not fit, and of a conversation that is resumed."""
    path = picture_file(tmp_path)
    model = fake_model(Replies("Yes."), sees_images=True, context_size=60)
    loop = typed([f"/image {path}", "What? " * 20, "What?"], model=model)
    assert shown_of(loop) == ["[image cat.png] What?", "Yes."]
    placed = PlacedImage(0, picture("cat.png"))
    asked = Message("user", "What?", images=(placed,))
    for reply in ([], [Message("assistant", "", partial=True)]):
        saved = SavedSession(messages=[asked, *reply], history=History((Change(0),)))
        messages, _, pending = resumed(saved)
        assert (messages, pending.text, pending.images) == ([], "What?", (placed.image,))


def test_a_conversation_is_resumed_with_its_images(tmp_path):
    first = typed([f"/image {picture_file(tmp_path)}", "What?"], "A cat.")
    store = first.workspace.store
    first.workspace.autosave()
    name = first.workspace.save("pets")
    loop = seeing_loop("again", "Yes.")
    assert loop.workspace.load(name)[0] == ["pets: 2 messages"]
    loop.chat.say("Sure?")
    assert b"(cat.png)What?" in bytes(one for one in loop.chat.model.sequence.ids if one < 256)
    blind = FakeLoop("Yes.")
    assert "fake reads text alone: it does not see the images of this conversation" in blind.workspace.load(name)[0]
    for path in (store.folder / "images").iterdir():
        path.unlink()
    lines = seeing_loop().workspace.load(name)[0]
    assert lines[1].startswith("the image cat.png cannot be read: No such file")
    loop.workspace.delete(name)
    assert list((store.folder / "images").iterdir()) == []


def test_every_save_of_a_long_reply_is_quick(tmp_path):
    """An image is written once, whatever its size."""
    import numpy as np

    from tinychat.images.image import Image

    large = Image(np.random.default_rng(0).integers(0, 256, (2000, 2000, 3), dtype=np.uint8), "noise")
    loop = seeing_loop("A cat.")
    loop.chat.say("What?", [large])
    loop.workspace.save("noise")
    began = time.perf_counter()
    for _ in range(20):
        loop.workspace.save("noise")
    assert time.perf_counter() - began < 2
    assert (loop.workspace.store.folder / "noise.json").stat().st_size < 2000
