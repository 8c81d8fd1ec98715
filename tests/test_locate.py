import json
import shutil

import pytest

from tinychat import locate
from tinychat.checkpoint import hub
from tinychat.checkpoint.store import store_folder
from tinychat.conversion import convert as conversion
from tinychat.errors import ConversionError, StoreError, TinychatError


@pytest.fixture
def conversions(monkeypatch):
    """Replace the conversion by one that only notes what it was asked for."""
    calls = []

    def convert(src, dst, progress=None, source=None):
        calls.append((src, source))
        dst.mkdir(parents=True)
        (dst / "tinychat.json").write_text(json.dumps({"format": 1}))

    monkeypatch.setattr(conversion, "convert", convert)
    monkeypatch.setattr(locate, "check_checkpoint", lambda folder: None)
    return calls


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_model_folder_is_itself(tmp_path, conversions):
    (tmp_path / "tinychat.json").write_text("{}")
    assert locate.locate(str(tmp_path)) == tmp_path
    assert conversions == []


def test_a_checkpoint_is_converted_once_into_the_store(checkpoint, conversions):
    folder = locate.locate(str(checkpoint))
    assert folder.parent == store_folder()
    assert locate.locate(str(checkpoint)) == folder
    assert conversions == [(checkpoint, str(checkpoint))]


def test_a_repository_is_downloaded_and_converted_once(checkpoint, conversions, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda repo_id: checkpoint)
    folder = locate.locate("owner/name")
    assert folder == store_folder() / "owner--name"
    assert locate.locate("owner/name") == locate.locate("owner--name") == folder
    assert conversions == [(checkpoint, "owner/name")]


def test_no_model_means_the_demo_model(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "_DEMO_FOLDERS", (tmp_path / "none", tmp_path / "demo"))
    with pytest.raises(StoreError, match="no demo model"):
        locate.locate(None)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "tinychat.json").write_text("{}")
    assert locate.locate(None) == locate.locate("demo") == tmp_path / "demo"


def test_a_stored_model_may_be_called_demo(checkpoint, conversions):
    shutil.copytree(checkpoint, store_folder() / "demo")
    (store_folder() / "demo" / "tinychat.json").write_text("{}")
    assert locate.locate("demo") == store_folder() / "demo"


def test_a_conversion_starts_from_a_folder_or_a_repository(checkpoint, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda repo_id: checkpoint / repo_id)
    assert locate.checkpoint_folder(str(checkpoint)) == checkpoint
    assert locate.checkpoint_folder("owner/name") == checkpoint / "owner/name"


def test_a_repository_in_the_store_can_be_converted_again(checkpoint, conversions, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda repo_id: checkpoint)
    locate.locate("owner/name")
    assert locate.checkpoint_folder("owner/name") == checkpoint
    with pytest.raises(ConversionError, match="converted model of the store"):
        locate.checkpoint_folder("owner--name")


def test_a_converted_model_is_no_checkpoint(tmp_path):
    (tmp_path / "tinychat.json").write_text("{}")
    with pytest.raises(ConversionError, match="converted already"):
        locate.checkpoint_folder(str(tmp_path))


@pytest.mark.parametrize("name", ["~no-such-user/x", "x" * 5000, "a\0b"])
@pytest.mark.parametrize("find", [locate.locate, locate.checkpoint_folder, locate.load])
def test_impossible_names_are_errors_of_one_line(name, find, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TinychatError) as caught:
        find(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
