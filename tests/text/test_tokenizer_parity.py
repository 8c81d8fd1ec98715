"""Ids and texts of both tokenizer formats against transformers."""

import json
import shutil

import gguf_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text.tokenizer_folders import DATA, STYLES, write_tokenizer

from tinychat.text.loading import load_tokenizer

pytestmark = pytest.mark.live

TEXTS = [
    "",
    " ",
    "\n",
    "Once upon a time, there was",
    " leading space",
    "trailing space ",
    "tabs\tand\nlines\r\n\n and a\u00a0hard space",
    "def f(x):\n\treturn {x: 'y'}",
    "日本語 and 你好, Привет, żółć, 🎉👩‍👩‍👧",
    "<0x0A> is a byte's name, \u2581 a sign for space",
    "e\u0301 combining, ﬁ ligature, \uff21\uff22\uff23 wide",
    "nul \x00 and control \x1b[31m",
]
# Without the noncharacters that tinychat takes out of a text, as marks of its own: see tinychat.text.guard.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0\ufdd1\ufdd2\ufdd3"), max_size=40)


SPACES = (" ", "\u2581")
"""Where a text begins with one of them, we follow SentencePiece, not transformers: see test_leading_spaces."""


def without(*tokens):
    """Return texts in which no special token stands: to us it is one only where a template wrote it."""
    return ANY_TEXT.filter(lambda text: not any(token in text for token in tokens))


QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


def load_both(folder):
    transformers = pytest.importorskip("transformers")
    return load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)


def sentencepiece_folder(folder, name, **config):
    pytest.importorskip("google.protobuf", reason="transformers reads tokenizer.model with protobuf")
    if not (DATA / name).is_file():
        pytest.skip(f"third-party data is missing: {name}")
    folder.mkdir(exist_ok=True)
    shutil.copyfile(DATA / name, folder / "tokenizer.model")
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("name", ["stories260K/tokenizer.model", "llama2-tokenizer.model"])
class TestSentencePiece:
    def test_ids_and_text_are_transformers(self, tmp_path, name, legacy):
        ours, theirs = load_both(sentencepiece_folder(tmp_path / "t", name, legacy=legacy))
        for text in TEXTS:
            ids = theirs(text).input_ids
            assert ours.encode(text) == ids or text.startswith(SPACES), text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special=False) == theirs.decode(ids)

    def test_rendered_special_tokens_are_transformers(self, tmp_path, name, legacy):
        ours, theirs = load_both(sentencepiece_folder(tmp_path / "t", name, legacy=legacy))
        for text in ["<s>[INST] hi [/INST] yes </s><s>x", "</s>\n<|user|>\nhi</s>\n", "a<unk>b", "<s>", "x<s>"]:
            assert ours.encode_rendered(text) == theirs(text, add_special_tokens=False).input_ids, text

    def test_any_text(self, tmp_path_factory, name, legacy):
        folder = sentencepiece_folder(tmp_path_factory.mktemp("t"), name, legacy=legacy)
        ours, theirs = load_both(folder)

        # Runs of spaces are left out: see test_sentencepiece_tokenizer.
        @QUICK
        @given(without("<s>", "</s>", "<unk>").filter(lambda text: "  " not in text.replace("\u2581", " ")))
        def check(text):
            text = text.lstrip("".join(SPACES))
            assert ours.encode(text) == theirs(text).input_ids

        check()


@pytest.mark.parametrize("style", ["llama3", "zephyr", "gemma", "qwen3"])
class TestTokenizerJson:
    def test_ids_and_text_are_transformers(self, tmp_path, style):
        kind, special, added = STYLES[style]
        ours, theirs = load_both(write_tokenizer(tmp_path / "t", kind, special, added))
        for text in [*TEXTS, "plain <think> token"]:
            ids = theirs(text).input_ids
            assert ours.encode(text) == ids, text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)

    def test_special_tokens(self, tmp_path, style):
        kind, special, added = STYLES[style]
        ours, theirs = load_both(write_tokenizer(tmp_path / "t", kind, special, added))
        text = f"{special[0]}a {special[1]} b\n{special[1]}{special[0]} "
        assert ours.encode_rendered(text) == theirs(text, add_special_tokens=False).input_ids
        assert ours.special_ids == set(theirs.all_special_ids) | {
            number for number, token in theirs.added_tokens_decoder.items() if token.special
        }
        assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
        assert ours.vocab_size == len(theirs)

    def test_any_text(self, tmp_path_factory, style):
        kind, special, added = STYLES[style]
        ours, theirs = load_both(write_tokenizer(tmp_path_factory.mktemp("t"), kind, special, added))

        @QUICK
        @given(without(*special))
        def check(text):
            ids = theirs(text, add_special_tokens=False).input_ids
            assert ours.encode(text, add_bos=False) == ids
            assert ours.decode(ids) == theirs.decode(ids)

        check()


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("name", ["Bert", "DistilBert", "MPNet"])
def test_encoders_of_words(tmp_path, name, lowercase):
    transformers = pytest.importorskip("transformers")
    renamed = {"[PAD]": "<pad>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"} if name == "MPNet" else {}
    trained = gguf_files.train_word_pieces(TEXTS, lowercase).get_vocab()
    vocab = {renamed.get(token, token): number for token, number in trained.items()}
    getattr(transformers, f"{name}Tokenizer")(vocab=vocab, do_lower_case=lowercase).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name.lower()}))
    ours, theirs = load_both(tmp_path)
    for text in TEXTS:
        assert [*ours.encode(text), *ours.suffix_ids] == theirs(text).input_ids, text
    # transformers takes an empty second text for none.
    for text in TEXTS[1:]:
        first, second = (ours.encode(part, add_bos=False) for part in (TEXTS[3], text))
        assert ours.pair_tokens.join(first, second)[0] == theirs(TEXTS[3], text).input_ids, text


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("tokenizer_class", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"])
def test_llama_classes_replace_the_pipeline_of_the_file(tmp_path, tokenizer_class, legacy):
    folder = write_tokenizer(
        tmp_path / "t", "sentencepiece", ["<s>", "</s>"], tokenizer_class=tokenizer_class, legacy=legacy
    )
    (folder / "config.json").write_text('{"model_type": "llama"}')
    ours, theirs = load_both(folder)
    for text in [*TEXTS, "x</s>\ny</s>z"]:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode_rendered(text) == ids or text.startswith(SPACES), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_mistral_keeps_the_pipeline_of_the_file(tmp_path):
    folder = write_tokenizer(
        tmp_path / "t", "sentencepiece", ["<s>", "</s>"], tokenizer_class="LlamaTokenizer", legacy=False
    )
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    ours, theirs = load_both(folder)
    for text in [*TEXTS, "x</s>\ny</s> z"]:
        assert ours.encode_rendered(text) == theirs(text, add_special_tokens=False).input_ids, text
