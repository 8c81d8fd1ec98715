import os
from pathlib import Path

import pytest

from tinychat.errors import StoreError
from tinychat.store.local import store_folder
from tinychat.store.names import ModelReference, resolve


def add_model(name):
    folder = store_folder() / name
    folder.mkdir(parents=True)
    (folder / "tinychat.json").write_text("{}")


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "my model!"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_resolve_model_folder(tmp_path):
    (tmp_path / "tinychat.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    reference = resolve(str(tmp_path))
    assert (reference.kind, reference.path) == ("folder", tmp_path)


def test_resolve_checkpoint_until_it_is_converted(checkpoint):
    reference = resolve(str(checkpoint))
    assert (reference.kind, reference.source) == ("checkpoint", str(checkpoint))
    assert reference.path.parent == store_folder()
    assert reference.path.name.startswith("my-model-")

    add_model(reference.path.name)
    assert resolve(str(checkpoint)) == ModelReference("stored", str(checkpoint), reference.path)


def test_a_replaced_checkpoint_is_converted_again(checkpoint):
    add_model(resolve(str(checkpoint)).path.name)
    os.utime(checkpoint / "config.json", (1, 1))
    assert resolve(str(checkpoint)).kind == "checkpoint"


def test_weights_that_were_trained_on_are_converted_again(checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"old")
    add_model(resolve(str(checkpoint)).path.name)
    assert resolve(str(checkpoint)).kind == "stored"
    (checkpoint / "model.safetensors").write_bytes(b"newer")
    assert resolve(str(checkpoint)).kind == "checkpoint"


def test_folders_of_the_same_name_do_not_share_a_conversion(checkpoint, tmp_path):
    twin = tmp_path / "elsewhere" / checkpoint.name
    twin.mkdir(parents=True)
    (twin / "config.json").write_text("{}")
    assert resolve(str(twin)).path != resolve(str(checkpoint)).path


def test_resolve_repository_until_it_is_converted():
    reference = resolve("owner/name-1.1B")
    assert (reference.kind, reference.source) == ("repository", "owner/name-1.1B")
    add_model(reference.path.name)
    assert resolve("owner/name-1.1B").kind == "stored"
    assert resolve(reference.path.name).path == reference.path


def test_resolve_stored_name_in_the_shadow_of_a_plain_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    add_model("small")
    assert resolve("small").path == store_folder() / "small"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("", "holds neither"),
        ("empty", "holds neither tinychat.json nor config.json"),
        ("model.bin", "is not a GGUF file"),
        ("nothing", "is not a folder, a model in the store or a repo id"),
        ("smal", "did you mean 'small'"),
        ("../nothing", r"^there is no file or folder \.\./nothing; check its path$"),
        ("nothing.GGUF", r"^there is no file or folder nothing\.GGUF; check its path$"),
        ("owner/../name", "or a repo id"),
        ("owner/..name", "or a repo id"),
        ("a/b/c", "or a repo id"),
        ("/nothing/there", "^there is no file or folder /nothing/there; check its path$"),
        ("owner/na\nme", "or a repo id"),
        ("\0", "or a repo id"),
        ("~no-such-user/model", "^there is no file or folder ~no-such-user/model; check its path$"),
        ("x" * 5000, "or a repo id"),
    ],
)
def test_resolve_says_what_is_wrong(model, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add_model("small")
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(StoreError, match=reason) as caught:
        resolve(model)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_gguf_files_are_checkpoints(tmp_path):
    (tmp_path / "ggufs").mkdir()
    file = tmp_path / "ggufs" / "Some Model.Q8_0.GGUF"
    file.write_text("x")
    reference = resolve(str(file))
    assert (reference.kind, reference.source) == ("checkpoint", str(file))
    assert reference.path.name.startswith("Some-Model.Q8_0-")
    assert resolve(str(tmp_path / "ggufs")).kind == "checkpoint"
    file.write_text("another")
    assert resolve(str(file)).path != reference.path, "a file that was changed is converted again"


def test_home_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tinychat.json").write_text("{}")
    assert resolve("~/model").path == Path(tmp_path / "model")
