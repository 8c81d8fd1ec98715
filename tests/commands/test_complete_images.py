"""Images of one-shots and batches: --image, and messages in parts."""

import json
import os
from pathlib import Path

import pytest
from console import Console
from fake_model import Replies, fake_model
from image_files import picture, picture_file, picture_url

pytest.importorskip("PIL")


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(Replies("A cat.", "Yes.", "No."), sees_images=True), monkeypatch, capsys)


@pytest.fixture
def blind(monkeypatch, capsys):
    return Console(fake_model(Replies("A cat.")), monkeypatch, capsys)


def read_by(console):
    return bytes(one for one in console.model.sequence.ids if one < 256).decode()


def test_images_come_before_the_prompt(console, tmp_path):
    cat, dog = picture_file(tmp_path), picture_file(tmp_path, "dog.png", 1)
    code, out, err = console.run("complete", "-p", "What?", "--image", cat, "--image", dog)
    assert (code, out, err) == (0, "A cat.\n", "")
    assert read_by(console) == "(cat.png)(dog.png)What?A cat."
    assert console.run("-c", "Sure?") == (0, "Yes.\n", "")
    assert read_by(console).startswith("(cat.png)(dog.png)What?A cat.Sure?")
    assert console.run("What?", "--image", cat)[0] == 0


@pytest.mark.parametrize("flags", [["--image-detail", "low"], []])
def test_images_are_seen_in_the_detail_that_is_asked_for(console, tmp_path, flags):
    assert console.run("complete", "-p", "What?", "--image", picture_file(tmp_path), *flags)[0] == 0
    (file,) = (Path(os.environ["TINYCHAT_HOME"]) / "log").glob("*.json")
    assert ('"detail": "low"' in file.read_text()) == bool(flags)


def test_the_log_names_images_and_keeps_them_apart(console, tmp_path):
    console.run("complete", "-p", "What?", "--image", picture_file(tmp_path))
    log = Path(os.environ["TINYCHAT_HOME"]) / "log"
    (file,) = log.glob("*.json")
    assert file.stat().st_size < 2000 and (log / "images" / picture().digest).exists()
    assert console.run("log")[1] == f"{file.stem}  [image cat.png] What?\n"
    assert console.run("log", file.stem)[1].startswith("> [image cat.png] What?\n")
    assert file.stem in console.run("log", "--search", "cat.png")[1]
    (log / "images" / picture().digest).unlink()
    code, out, err = console.run("-c", "Sure?")
    assert (code, out) == (0, "Yes.\n")
    assert err.startswith("the image cat.png cannot be read: No such file") and err.count("\n") == 1
    assert console.run("log", "--clear")[0] == 0
    assert list((log / "images").iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--image", "cat.png", "--raw"], 2, "--image needs the chat template: leave out --raw"),
        (["--image", "nowhere.png"], 1, "error: --image nowhere.png cannot be read: No such file"),
        (["--image", "notes.txt"], 1, "error: --image notes.txt is not an image of a known format"),
    ],
)
def test_what_cannot_be_shown_is_named(console, tmp_path, monkeypatch, flags, code, message):
    picture_file(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    found = console.run("complete", "-p", "What?", *flags)
    assert found[:2] == (code, "") and message in found[2] and console.loaded == []


def test_a_model_that_sees_none_is_not_asked(blind, tmp_path):
    code, out, err = blind.run("complete", "-p", "What?", "--image", picture_file(tmp_path))
    assert (code, out, err) == (1, "", "error: --image must be left out: this model reads text alone\n")


def batch_lines():
    image = {"type": "image_url", "image_url": {"url": picture_url()}}
    asked = [{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]
    plain = [{"role": "user", "content": "Who?"}]
    return [
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": asked}},
        {"id": "b", "messages": asked},
        {"id": "c", "messages": plain},
    ]


def test_rows_of_a_batch_have_images(console, batch_files):
    source, target = batch_files(batch_lines())
    assert console.run("batch", source, "fake", "-o", target, "--parallel", "1")[0] == 0
    first, second, third = [json.loads(line) for line in target.read_text().splitlines()]
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "A cat."
    assert (second["text"], third["text"]) == ("Yes.", "No.")
    # The image counts for what a later run finds done.
    before = target.read_bytes()
    assert console.run("batch", source, "fake", "-o", target)[0] == 0
    assert target.read_bytes() == before


def test_rows_with_images_are_errors_of_a_model_that_sees_none(blind, batch_files):
    source, target = batch_files(batch_lines())
    assert blind.run("batch", source, "fake", "-o", target)[0] == 1
    first, second, third = [json.loads(line) for line in target.read_text().splitlines()]
    problem = "messages[0].content has an image, which must be left out: this model reads text alone"
    assert first["response"]["status_code"] == 400
    assert first["response"]["body"]["error"]["message"] == second["error"] == problem
    assert third["text"] == "A cat."
