import json
import shutil

import pytest
from text.tokenizer_folders import DATA

from tinychat.errors import TextError
from tinychat.text.loading import load_tokenizer

LLAMA2 = DATA / "llama2-tokenizer.model"

needs_data = pytest.mark.skipif(not LLAMA2.is_file(), reason="third-party data is missing")


def write_llama2(folder, config=None, **files):
    folder.mkdir()
    shutil.copyfile(LLAMA2, folder / "tokenizer.model")
    for name, value in {"tokenizer_config": config or {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@needs_data
class TestLlama2:
    def test_words(self, tmp_path):
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t"))
        assert tokenizer.encode("Hello this is a test") == [1, 15043, 445, 338, 263, 1243]
        assert tokenizer.encode("Hello this is a test", add_bos=False) == [15043, 445, 338, 263, 1243]
        assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (32000, 1, 2)
        assert (tokenizer.piece(15043), tokenizer.token_id("▁Hello")) == ("▁Hello", 15043)

    def test_runs_of_spaces_join_by_score(self, tmp_path):
        """As SentencePiece trained it; transformers 5 orders merges by id here, and writes "▁▁" first."""
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t"))
        pieces = [tokenizer.piece(number) for number in tokenizer.encode("hello  world", add_bos=False)]
        assert pieces == ["▁hello", "▁", "▁world"]

    def test_special_tokens_in_plain_text_stay_text(self, tmp_path):
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t"))
        for text in ["</s>", "a<s>b", "<unk> </s>\n<s>", "[INST] <<SYS>>", "\ufdd0</s>\ufdd1"]:
            ids = tokenizer.encode(text, add_bos=False)
            assert not set(ids) & tokenizer.special_ids, text
            assert tokenizer.decode(ids) == text.strip("\ufdd0\ufdd1")

    def test_added_tokens_of_a_chat_finetune(self, tmp_path):
        added = {"<|im_start|>": 32000, "<|im_end|>": 32001}
        folder = write_llama2(tmp_path / "t", {"eos_token": "<|im_end|>"}, added_tokens=added)
        tokenizer = load_tokenizer(folder)
        assert tokenizer.eos_id == 32001
        assert tokenizer.vocab_size == 32002
        assert tokenizer.special_ids == {0, 1, 2, 32001}
        assert tokenizer.encode_rendered("<|im_start|>user\n")[0] == 32000
        assert 32001 not in tokenizer.encode("<|im_end|>")
        assert tokenizer.decode([15043, 32001]) == "Hello"
        assert tokenizer.decode([15043, 32001], skip_special=False) == "Hello<|im_end|>"

    def test_added_tokens_may_swallow_spaces(self, tmp_path):
        token = {"content": "<|sep|>", "special": True, "lstrip": True, "rstrip": True}
        folder = write_llama2(tmp_path / "t", {"added_tokens_decoder": {"32000": token}})
        tokenizer = load_tokenizer(folder)
        assert tokenizer.encode_rendered("Hello \n<|sep|>  \n") == [15043, 32000]

    def test_no_begin_token_where_the_settings_say_so(self, tmp_path):
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t", {"add_bos_token": False}))
        assert tokenizer.encode("Hello") == [15043]

    @pytest.mark.parametrize(("settings", "ids"), [({}, []), ({"add_eos_token": True}, [2])])
    def test_an_end_token_stands_behind_texts_that_nothing_continues(self, tmp_path, settings, ids):
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t", settings))
        assert (tokenizer.encode("Hello"), tokenizer.suffix_ids) == ([1, 15043], ids)

    def test_lone_surrogates_become_replacement_characters(self, tmp_path):
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t"))
        assert tokenizer.decode(tokenizer.encode("a\udcffb")) == "a\ufffdb"

    @pytest.mark.parametrize("number", [-1, 32000, 2**40])
    def test_ids_without_a_token_vanish(self, tmp_path, number):
        tokenizer = load_tokenizer(write_llama2(tmp_path / "t"))
        assert tokenizer.decode([15043, number]) == "Hello"
        assert tokenizer.piece(number) == ""

    @pytest.mark.parametrize("token", [5, {"content": ""}, {"content": 3}, None])
    def test_malformed_added_token(self, tmp_path, token):
        folder = write_llama2(tmp_path / "t", {"added_tokens_decoder": {"32000": token}})
        with pytest.raises(TextError, match=r"tokenizer_config\.json: added token '32000' is malformed"):
            load_tokenizer(folder)

    def test_truncated_file(self, tmp_path):
        folder = write_llama2(tmp_path / "t")
        (folder / "tokenizer.model").write_bytes(LLAMA2.read_bytes()[:100_001])
        with pytest.raises(TextError, match=r"tokenizer\.model: not a SentencePiece model"):
            load_tokenizer(folder)

    def test_piece_that_is_no_utf8(self, tmp_path):
        folder = write_llama2(tmp_path / "t")
        data = LLAMA2.read_bytes().replace("\u2581the".encode(), b"\xe2\xffathe")
        (folder / "tokenizer.model").write_bytes(data)
        with pytest.raises(TextError, match=r"tokenizer\.model: holds pieces that are not UTF-8"):
            load_tokenizer(folder)


@pytest.mark.parametrize("data", [b"", b"not a model" * 9, b"\x00" * 64])
def test_no_model(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TextError, match=r"tokenizer\.model: .*; fetch the file again"):
        load_tokenizer(tmp_path)


def test_no_tokenizer_at_all(tmp_path):
    with pytest.raises(TextError, match=r"no tokenizer\.json, tokenizer\.model or tiktoken\.model"):
        load_tokenizer(tmp_path)


def trained_model(tmp_path, user_defined=()):
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=30 + len(user_defined),
        user_defined_symbols=list(user_defined),
        minloglevel=2,
    )
    return tmp_path


@pytest.mark.parametrize("name", ["eos_token", "pad_token"])
def test_named_token_that_is_a_piece_like_any_other(tmp_path, name):
    """A user-defined piece of the model, which no other file declares."""
    folder = trained_model(tmp_path, ["<|end|>"])
    (folder / "tokenizer_config.json").write_text(json.dumps({name: "<|end|>"}))
    tokenizer = load_tokenizer(folder)
    end = tokenizer.token_id("<|end|>")
    assert end in tokenizer.special_ids
    assert tokenizer.encode_rendered("the<|end|>")[-1] == end
    assert end not in tokenizer.encode("the<|end|>")


def test_named_token_that_is_nowhere(tmp_path):
    folder = trained_model(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<|nowhere|>"}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.token_id("<|nowhere|>") is None
    assert tokenizer.decode(tokenizer.encode("the dog")) == "the dog"
