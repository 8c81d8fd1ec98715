import json
import sys

import pytest

from tinychat.errors import StoreError
from tinychat.store import local as store


def add_model(name, manifest=None):
    folder = store.store_folder() / name
    folder.mkdir(parents=True)
    (folder / "tinychat.json").write_text(json.dumps(manifest or {}))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep user data elsewhere")
def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path / "own"))
    assert store.store_folder() == tmp_path / "own" / "models"
    monkeypatch.delenv("TINYCHAT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert store.store_folder() == tmp_path / "data" / "tinychat" / "models"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.store_folder() == tmp_path / ".local" / "share" / "tinychat" / "models"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep user data elsewhere")
def test_a_user_without_a_home(monkeypatch):
    for variable in ("TINYCHAT_HOME", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(StoreError, match="set TINYCHAT_HOME"):
        store.store_folder()


def test_a_store_that_is_not_there_is_empty():
    assert not store.store_folder().exists()
    assert store.list_models() == []


def test_lists_models_only():
    add_model("small", {"source": "owner/small", "quantization": {"method": "int4", "group_size": 32}})
    add_model("strange", {"source": ["x"], "quantization": "int4"})
    add_model("broken").joinpath("tinychat.json").write_text("{")
    (store.store_folder() / "unfinished").mkdir()
    add_model(".small.tmp")
    (store.store_folder() / "a file").write_text("x")
    broken, small, strange = store.list_models()
    assert (small.name, small.source, small.quantization) == ("small", "owner/small", "int4")
    assert small.bytes == 1000 + (small.path / "tinychat.json").stat().st_size
    assert (broken.name, broken.source, broken.quantization) == ("broken", "", "")
    assert (strange.name, strange.source, strange.quantization) == ("strange", "", "")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "/etc", ".hidden", "a b", "a\n", "ü", "x" * 300, "x."]
)
def test_names_that_could_leave_the_store(name):
    with pytest.raises(StoreError, match="cannot name a model") as caught:
        store.path_for(name)
    assert str(caught.value).isprintable()
    with pytest.raises(StoreError, match="cannot name a model"):
        store.remove(name)


def test_remove():
    kept, gone = add_model("kept"), add_model("gone")
    store.remove("gone")
    assert not gone.exists()
    assert kept.exists()


def test_remove_of_a_link_keeps_what_it_points_to(tmp_path):
    add_model("other")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "tinychat.json").write_text("{}")
    (store.store_folder() / "link").symlink_to(tmp_path / "target")
    store.remove("link")
    assert (tmp_path / "target" / "tinychat.json").exists()
    assert [model.name for model in store.list_models()] == ["other"]


def test_remove_suggests_the_nearest():
    add_model("TinyLlama-1.1B")
    with pytest.raises(StoreError, match=r"no model 'tinyllama-1\.1b'; did you mean 'TinyLlama-1\.1B'\?"):
        store.remove("tinyllama-1.1b")


def test_remove_of_what_is_not_there():
    with pytest.raises(StoreError, match=r"no model 'nothing'; see `tinychat models`$"):
        store.remove("nothing")


def test_a_store_that_cannot_be_used_names_its_variable(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path / "file"))
    for use in (store.make_store, store.list_models):
        with pytest.raises(StoreError, match=r"Not a directory; .*set TINYCHAT_HOME"):
            use()


def test_remove_without_permission(monkeypatch):
    add_model("kept")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(StoreError, match="kept cannot be deleted: Permission denied; check"):
        store.remove("kept")
