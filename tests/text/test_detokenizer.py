import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.tokenizer_folders import DATA, STYLES, write_tokenizer

from tinychat.text.detokenizer import Detokenizer
from tinychat.text.loading import load_tokenizer

AWKWARD = ["🎉👩‍👩‍👧 ok", "日本語のテキスト", "naïve café", " two  spaces", "a\ufffdb", "e\u0301", ""]
QUICK = settings(max_examples=150, deadline=None, database=None)


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece", "unigram", "stories260K"])
def tokenizer(request, tmp_path_factory):
    if request.param == "stories260K":
        if not (DATA / request.param).is_dir():
            pytest.skip("third-party data is missing")
        return load_tokenizer(DATA / request.param)
    style = next(style for style in STYLES.values() if style[0] == request.param)
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("t"), *style))


def pieces_of(tokenizer, ids, after=()):
    detokenizer = Detokenizer(tokenizer, after)
    return [*(detokenizer.add(number) for number in ids), detokenizer.finish()]


def test_random_ids(tokenizer):
    @QUICK
    @given(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    def check(ids):
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)

    check()


def test_random_ids_with_many_bytes(tokenizer):
    byte_ids = [number for number in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(number)) == 1]

    @QUICK
    @given(st.lists(st.sampled_from(byte_ids), max_size=30))
    def check(ids):
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("text", AWKWARD)
def test_text_comes_back_whole(tokenizer, text):
    ids = tokenizer.encode(text)
    joined = "".join(pieces_of(tokenizer, ids))
    assert joined == tokenizer.decode(ids)
    # Formats that put a space first cannot tell it from one of the text's own.
    assert joined.removeprefix(" ") == text.removeprefix(" ")


def test_no_replacement_character_while_bytes_may_still_become_valid(tokenizer):
    @QUICK
    @given(st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=20))
    def check(text):
        pieces = pieces_of(tokenizer, tokenizer.encode(text))
        assert not any("\ufffd" in piece for piece in pieces)
        shown = list(itertools.accumulate(pieces))
        assert all(shown[-1].startswith(part) for part in shown)

    check()


def test_an_emoji_appears_with_its_last_byte(tokenizer):
    pieces = pieces_of(tokenizer, tokenizer.encode("x🥑"))
    assert sum(bool(piece) for piece in pieces) <= 3
    assert "🥑" in pieces


def test_a_character_that_never_becomes_whole(tokenizer):
    byte = next(n for n in range(tokenizer.vocab_size) if tokenizer.token_bytes(n) == b"\xf0")
    letter = next(n for n in range(tokenizer.vocab_size) if tokenizer.token_bytes(n) == b"e")
    assert pieces_of(tokenizer, [letter, byte]) == ["e", "", "\ufffd"]
    assert pieces_of(tokenizer, [letter, byte, letter]) == ["e", "", "\ufffde", ""]


def test_special_tokens_are_left_out(tokenizer):
    special = min(tokenizer.special_ids)
    ids = tokenizer.encode("hello there", add_bos=False)
    assert "".join(pieces_of(tokenizer, [special, *ids, special])) == "hello there"


def test_words_after_a_prompt_keep_their_space(tokenizer):
    ids = tokenizer.encode("Once upon a time there was", add_bos=False)
    for cut in range(1, len(ids)):
        text = "".join(pieces_of(tokenizer, ids[cut:], after=ids[:cut]))
        assert tokenizer.decode(ids[:cut]) + text == tokenizer.decode(ids)


@pytest.mark.live
def test_text_is_transformers(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    style = STYLES["llama3"]
    folder = write_tokenizer(tmp_path_factory.mktemp("t"), *style)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)

    @QUICK
    @given(st.lists(st.integers(0, ours.vocab_size - 1), max_size=30))
    def check(ids):
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)

    check()
