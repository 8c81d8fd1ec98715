"""Tokenizer files that want to crash the program, to hang it, or to fill the memory."""

import base64
import json
import os
import time

import pytest
from text.tokenizer_folders import DATA, STYLES, write_tokenizer

from tinychat.errors import TextError
from tinychat.text import tokenizers_library
from tinychat.text.guard import spelling_pattern
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template

LLAMA2 = DATA / "llama2-tokenizer.model"


def write_changed(folder, style="llama3", **changes):
    """Write a tokenizer.json with other sections; those of `model` are merged into it."""
    kind, special, added = STYLES[style]
    write_tokenizer(folder, kind, special, added)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] |= changes.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps(content | changes))
    return folder


def split_at(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def charsmap(data):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


UNKNOWN_TOKEN = [{"SpecialToken": {"id": "nobody", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
MANY_IDS = {"id": "x", "ids": [0] * 9999, "tokens": ["x"] * 9999}
REFUSED = {
    "panic": {
        "post_processor": {"type": "TemplateProcessing", "single": UNKNOWN_TOKEN, "pair": [], "special_tokens": {}}
    },
    "panic in a destructor": {"model": {"continuing_subword_prefix": "A"}},
    "exponential pattern": {"pre_tokenizer": split_at("(a|aa)+$")},
    "pattern within a sequence": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split_at("(0|00)+$")]}},
    "texts that double": {"normalizer": sequence(*[replace({"String": "h"}, "hh")] * 40)},
    "texts that double by a pattern": {"normalizer": sequence(*[replace({"Regex": "."}, "hh")] * 40)},
    "long prefix": {"normalizer": sequence({"type": "Prepend", "prepend": "a" * 100_000})},
    "long replacement": {"normalizer": replace({"String": ""}, "a" * 100_000)},
    "empty character map": {"normalizer": charsmap(b"")},
    "character map without end": {"normalizer": charsmap(b"\xff\xff\xff\xff" + b"\0" * 8)},
    "character map to long texts": {"normalizer": charsmap(b"\0" * 4 + b"a" * 9999)},
    "post-processor of many tokens": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": UNKNOWN_TOKEN,
            "pair": [],
            "special_tokens": {"nobody": MANY_IDS},
        }
    },
    "deep normalizer": {"normalizer": json.loads('{"type": "Sequence", "normalizers": [' * 90 + "]}" * 90)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_while_loading(tmp_path, capfd, name):
    folder = write_changed(tmp_path / "t", **REFUSED[name])
    started = time.monotonic()
    with pytest.raises(TextError, match=r"tokenizer\.json: ") as error:
        load_tokenizer(folder).encode("hello")
    assert time.monotonic() - started < 3
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


def test_keys_may_be_escaped(tmp_path):
    """JSON has more than one spelling of a key, and the library knows them all."""
    folder = write_changed(tmp_path / "t", model={"continuing_subword_prefix": "A"})
    text = (folder / "tokenizer.json").read_text().replace("subword_prefix", "subword\\u005fprefix")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(TextError, match="continuing_subword_prefix is supported in WordPiece alone"):
        load_tokenizer(folder)


def test_padding_and_truncation_mean_nothing(tmp_path):
    padding = {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    folder = write_changed(tmp_path / "t", padding=padding, truncation=truncation)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_a_pattern_that_is_slow_on_one_text_only(tmp_path, monkeypatch):
    """Nothing tells it while loading; later it costs that text, and not the program."""
    monkeypatch.setattr(tokenizers_library, "_SECONDS", 0.5)
    tokenizer = load_tokenizer(write_changed(tmp_path / "t", pre_tokenizer=split_at("(?:z|zz){18}Q")))
    started = time.monotonic()
    with pytest.raises(TextError, match="its patterns take too long"):
        tokenizer.encode("z" * 400)
    assert time.monotonic() - started < 3
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_a_panic_on_one_text_only(tmp_path, capfd):
    tokenizer = load_tokenizer(write_changed(tmp_path / "t", pre_tokenizer=split_at("(z|zz)+$")))
    with pytest.raises(TextError, match="retry-limit"):
        tokenizer.encode("z" * 60 + "!")
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert capfd.readouterr().err == ""


def test_ids_beyond_any_vocabulary(tmp_path):
    folder = write_changed(tmp_path / "t")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["<|eot_id|> far away"] = 2**32 - 1
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("x <|eot_id|>")) == "x <|eot_id|>"


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "config.json", "chat_template.jinja"]
)
def test_files_that_are_too_large(tmp_path, name):
    folder = write_changed(tmp_path / "t")
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
    with open(folder / name, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TextError, match=rf"{name}: .*larger than \d+ MiB"):
        load_template(folder, load_tokenizer(folder))


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "config.json", "special_tokens_map.json", "added_tokens.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_settings_that_are_no_files(tmp_path, name, kind):
    folder = write_changed(tmp_path / "t")
    if name == "added_tokens.json":
        (folder / "tokenizer_config.json").unlink()
    (folder / name).unlink(missing_ok=True)
    if kind == "folder":
        (folder / name).mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(TextError, match=f"{name}: cannot be read"):
        load_tokenizer(folder)


@pytest.mark.parametrize("style", ["llama3", "sentencepiece"])
def test_named_tokens_with_lone_surrogates(tmp_path, style):
    folder = write_changed(tmp_path / "t")
    if style == "sentencepiece":
        if not LLAMA2.is_file():
            pytest.skip("third-party data is missing")
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.model").write_bytes(LLAMA2.read_bytes())
    config = (
        '{"eos_token": "\\ud800", "pad_token": {"content": "a\\udfff"}, "chat_template": "{{ eos_token }}\\ud800x"}'
    )
    (folder / "tokenizer_config.json").write_text(config)
    tokenizer = load_tokenizer(folder)
    ids = load_template(folder, tokenizer).render_ids([{"role": "user", "content": "x"}])
    assert tokenizer.decode(ids, skip_special=False).endswith("\ufffdx")
    assert tokenizer.token_id("\ud800") is None


def test_too_many_added_tokens(tmp_path):
    decoder = {str(1000 + i): {"content": f"<{i}>"} for i in range(30_000)}
    folder = write_changed(tmp_path / "t")
    if not LLAMA2.is_file():
        pytest.skip("third-party data is missing")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(LLAMA2.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with pytest.raises(TextError, match="more than 20000 added tokens"):
        load_tokenizer(folder)


def test_spellings_that_begin_alike_too_often():
    with pytest.raises(TextError, match="begin alike"):
        spelling_pattern("a" * length for length in range(990))


def growth(run, size):
    """Return how many times as long sixteen times the size takes: 16, or 256 where time grows with its square."""

    def seconds(size):
        started = time.process_time()
        run(size)
        return time.process_time() - started

    return min(seconds(16 * size) for _ in range(3)) / min(seconds(size) for _ in range(3))


def test_time_grows_with_spellings_and_with_the_text_that_is_searched():
    spellings = [f"<unused{number}>" for number in range(10_000)]
    pattern = spelling_pattern(spellings)
    assert pattern.findall("<unused77> and <unused9999><unused10000>") == ["<unused77>", "<unused9999>"]
    assert pattern.findall("<" * 100_000) == []
    assert growth(lambda count: spelling_pattern(spellings[:count]), 625) < 64
    assert growth(lambda length: pattern.findall("<" * length), 100_000) < 64


def test_stderr_comes_back_where_threads_overlap(capfd):
    first, second = tokenizers_library.library_calls("first"), tokenizers_library.library_calls("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    os.write(2, b"hidden")
    second.__exit__(None, None, None)
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"
