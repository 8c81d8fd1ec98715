"""Vocabularies in tiktoken files: ids as tiktoken gives them, control tokens, and files that are damaged."""

import base64
import json
from itertools import product
from random import Random

import pytest
from text.tiktoken_files import BYTES, file_of, joined, ranks_of, write_tiktoken
from text.tokenizer_folders import CORPUS, write_tokenizer

from tinychat.errors import TextError
from tinychat.text import tiktoken_file
from tinychat.text.guard import unguard
from tinychat.text.hard_texts import HARD_TEXTS
from tinychat.text.loading import load_tokenizer
from tinychat.text.split_patterns import KIMI
from tinychat.text.template import load_template
from tinychat.text.tiktoken_file import tokenizer_json
from tinychat.text.token_spelling import TokenSpelling

# "abc" ranks before its part "ab"; "xyz" has no parts, and is a word only; the last three are parts of characters.
RANKS = ranks_of(
    "bc", "abc", "ab", "aa", "aaa", "xyz", "User", "se", "er", "Us", " b", "中文", "'l", "'ll", "12", "123", "\n\n"
) | {b"\xe4\xb8": 273, b"\xe4\xb8\xad": 274, b"\x9f\x98": 275}
WORDS = {
    "getUserName": ["get", "User", "Name"],
    "HTTPServer": ["HTTPServer"],
    "中文English混合": ["中文", "English", "混合"],
    "x中": ["x", "中"],
    "ひらカナ漢字": ["ひらカナ", "漢字"],
    "I'll DON'T o'clock": ["I'll", " DON'T", " o", "'clock"],
    "1234567": ["123", "456", "7"],
    "a  b   \n\n  c ": ["a", " ", " b", "   \n\n", " ", " c", " "],
    "x = {1: '🎉'};\n": ["x", " =", " {", "1", ":", " '🎉'};\n"],
    "👩‍👩‍👧 é e\u0301": ["👩‍👩‍👧", " é", " e\u0301"],
    "xyz abcabc aaaaa": ["xyz", " abcabc", " aaaaa"],
    "\tif x:\r\n\t\ty": ["\tif", " x", ":\r\n", "\t", "\ty"],
}
CONTROL = {"[BOS]": 276, "[EOS]": 277, "<|im_end|>": 278}


@pytest.fixture(scope="module")
def kimi(tmp_path_factory):
    return load_tokenizer(write_tiktoken(tmp_path_factory.mktemp("kimi"), RANKS))


@pytest.mark.parametrize("text", WORDS)
def test_words_are_cut_as_kimi_cuts_them(text, kimi):
    assert "".join(WORDS[text]) == text
    assert kimi.encode(text) == [i for word in WORDS[text] for i in joined(word.encode(), RANKS)]
    assert kimi.decode(kimi.encode(text)) == text


def test_bytes_are_joined_as_tiktoken_joins_them(kimi):
    words = ["".join(letters) for length in range(1, 6) for letters in product("abcxyz", repeat=length)]
    assert kimi.encode_many(words) == [joined(word.encode(), RANKS) for word in words]


@pytest.mark.parametrize("seed", range(8))
def test_any_ranks_give_the_ids_of_tiktoken(seed, tmp_path):
    """Also ranks that no training gives: a token before its parts, or of parts that are none."""
    draw = Random(seed)
    tokens = list({"".join(draw.choices("ab", k=draw.randrange(2, 7))) for _ in range(draw.randrange(1, 40))})
    draw.shuffle(tokens)
    ranks = ranks_of(*tokens)
    tokenizer = load_tokenizer(write_tiktoken(tmp_path / "t", ranks))
    words = ["".join(letters) for length in (3, 7, 10) for letters in product("ab", repeat=length)]
    assert tokenizer.encode_many(words) == [joined(word.encode(), ranks) for word in words]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with the ranks of a vocabulary that was trained, and these."""
    folder = write_tokenizer(tmp_path_factory.mktemp("trained"), "byte-level", [])
    spelled = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    ranks = {TokenSpelling(byte_level=True).token_bytes(token): rank for token, rank in spelled.items()}
    return write_tiktoken(folder, ranks), ranks


def test_ids_are_those_of_tiktoken_itself(trained):
    tiktoken = pytest.importorskip("tiktoken")
    folder, ranks = trained
    special = dict(load_tokenizer(folder).added_tokens)
    theirs = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    ours = load_tokenizer(folder)
    draw = Random(1)
    letters = (
        "aAbZ\u00e9'sStTrReEvVlLdDmM\u017f  \n\r\t123\u0663中文々\u3007日本語ひカ가🎉👩\u200d👧\u0301\u00a0\u3000"
        ".,!?/\\-_#{}()[]\u01c5\u02b0\u2167ß\ufb01\u0085\u2028"
    )
    mixed = ["".join(draw.choices(letters, k=draw.randrange(1, 40))) for _ in range(1000)]
    for text in [*HARD_TEXTS, *CORPUS, *WORDS, *mixed]:
        assert ours.encode(text) == theirs.encode_ordinary(text), text
    rendered = "<|im_end|>Hi 你好[EOS]<|reserved_token_700|> [BO S]"
    assert ours.encode_rendered(rendered) == theirs.encode(rendered, allowed_special="all")


def test_control_tokens(kimi):
    text = "".join(["a", *CONTROL, "b<|reserved_token_300|>"])
    a, b = RANKS[b"a"], RANKS[b"b"]
    assert kimi.encode_rendered(text) == [a, *CONTROL.values(), b, 300]
    assert not {*kimi.encode(text)} & kimi.special_ids
    assert kimi.decode(kimi.encode(text)) == text
    assert (kimi.bos_id, kimi.eos_id, kimi.prefix_ids, kimi.suffix_ids) == (276, 277, [], [])
    assert kimi.special_ids == {*range(276, 532)}
    assert kimi.vocab_size == 532


def test_declared_tokens_may_be_text_of_the_model(tmp_path):
    declared = {"content": "<|tool_call_begin|>", "special": False}
    folder = write_tiktoken(tmp_path / "t", BYTES, added_tokens_decoder={"260": declared})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode_rendered("<|tool_call_begin|>") == [260]
    assert tokenizer.decode([260, 261]) == "<|tool_call_begin|>"


def test_templates_write_control_tokens(tmp_path):
    """In the manner of Moonlight's."""
    template = (
        "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
        "{{ '<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>' }}{% endif %}"
        "{{ '<|im_' + message['role'] + '|>' + message['role'] + '<|im_middle|>' + message['content'] + '<|im_end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
    )
    names = ["[BOS]", "[EOS]", *(f"<|im_{name}|>" for name in ("end", "user", "assistant", "system", "middle"))]
    folder = write_tiktoken(tmp_path / "t", BYTES, names, chat_template=template)
    tokenizer = load_tokenizer(folder)
    ids = load_template(folder, tokenizer).render_ids([{"role": "user", "content": "Hi<|im_end|>"}])
    end, user, assistant, system, middle = range(258, 263)

    def text(words):
        return tokenizer.encode(words)

    assert ids == [
        *[system, *text("system"), middle, *text("You are a helpful assistant"), end],
        *[user, *text("user"), middle, *text("Hi<|im_end|>"), end, assistant, *text("assistant"), middle],
    ]


@pytest.mark.parametrize(("module", "is_sorted"), [("tokenization_kimi", True), ("tokenization_moonshot", False)])
def test_tools_of_kimi_have_their_keys_in_order(module, is_sorted, tmp_path):
    auto_map = {"AutoTokenizer": [f"{module}.TikTokenTokenizer", None]}
    folder = write_tiktoken(tmp_path / "t", BYTES, auto_map=auto_map, chat_template="{{ tools | tojson }}")
    tools = [{"type": "function", "function": {"name": "f", "description": "[EOS]"}}]
    written = load_template(folder, load_tokenizer(folder)).render([], tools=tools)
    assert unguard(written) == json.dumps(tools, sort_keys=is_sorted)
    assert written != unguard(written)


def test_an_empty_line_and_other_line_ends_are_taken(kimi, tmp_path):
    folder = write_tiktoken(tmp_path / "t", RANKS)
    path = folder / "tiktoken.model"
    path.write_bytes(b"\r\n" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_tokenizer(folder).encode("getUserName") == kimi.encode("getUserName")


def test_other_vocabularies_of_a_folder_come_first(tmp_path):
    folder = write_tiktoken(tmp_path / "t", RANKS)
    write_tokenizer(folder, "byte-level", ["<s>", "</s>"])
    (folder / "tiktoken.model").write_bytes(b"damaged")
    assert load_tokenizer(folder).bos_token == "<s>"


@pytest.mark.parametrize(
    "auto_map",
    [{"AutoTokenizer": "tokenization_moonshot.TikTokenTokenizer"},
     {"AutoTokenizer": ["moonshotai/Kimi-K2-Instruct--tokenization_kimi.TikTokenTokenizer", None]}],
)  # fmt: skip
def test_the_code_of_a_folder_is_known_by_its_name(auto_map, tmp_path):
    assert load_tokenizer(write_tiktoken(tmp_path / "t", RANKS, auto_map=auto_map)).encode("中x")


@pytest.mark.parametrize(("model_type", "is_known"), [("deepseek_v3", True), ("kimi_linear", True), ("llama", False)])
def test_without_code_the_model_says_it(model_type, is_known, tmp_path):
    folder = write_tiktoken(tmp_path / "t", RANKS, auto_map=None)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if is_known:
        assert load_tokenizer(folder).encode("中x")
    else:
        with pytest.raises(TextError, match=r"how tiktoken\.model cuts text is not known \(TikTokenTokenizer\)"):
            load_tokenizer(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_map": {"AutoTokenizer": ["tokenization_other.T\n", None]}}, r"not known \(tokenization_other.T\\x0a\)"),
        ({"auto_map": {"AutoTokenizer": 3}, "tokenizer_class": 4}, "no class is named"),
        ({"auto_map": [], "tokenizer_class": "X"}, r"not known \(X\); put a tokenizer\.json beside it"),
        ({"added_tokens_decoder": {"5": {"content": "x", "special": True}}}, "added token 5 is none of the 256 after"),
        ({"added_tokens_decoder": {"9999": {"content": "x"}}}, "added token 9999 is none of the 256 after the 276 of"),
        ({"added_tokens_decoder": {"276": {"content": "User"}}}, "two tokens have the same text"),
        ({"added_tokens_decoder": {"276": {"content": "x1"}, "277": {"content": "x1"}}}, "two tokens have the same"),
        ({"added_tokens_decoder": {"276": {"content": "<|reserved_token_277|>"}}}, "two tokens have the same text"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message, tmp_path):
    folder = write_tiktoken(tmp_path / "t", RANKS, **settings)
    with pytest.raises(TextError, match=message) as caught:
        load_tokenizer(folder)
    assert str(caught.value).startswith(f"{folder / 'tokenizer_config.json'}: ")
    assert "\n" not in str(caught.value)


def changed(old, new):
    return lambda data: data.replace(old, new, 1)


def encoded(token):
    return base64.b64encode(token)


DAMAGES = {
    "empty": (lambda data: b"", "256 of the 256 single bytes have no token"),
    "no lines": (lambda data: b"\x00" * 99, "line 1 is not a token in base64"),
    "cut off": (lambda data: data[:-5], "line 276 is not a token in base64"),
    "a letter that is not base64": (changed(b"== 3\n", b"!= 3\n"), "is not a token in base64 with its rank"),
    "no padding": (changed(b"== 3\n", b" 3\n"), "is not a token in base64 with its rank"),
    "an empty token": (lambda data: data + b" 276\n", "line 277 is not a token in base64"),
    "no rank": (changed(b" 3\n", b"\n"), "is not a token in base64 with its rank"),
    "a negative rank": (changed(b" 3\n", b" -3\n"), "is not a token in base64 with its rank"),
    "a rank of many digits": (changed(b" 3\n", b" " + b"9" * 5000 + b"\n"), "is not a token in base64"),
    "two ranks": (changed(b" 3\n", b" 3 4\n"), "is not a token in base64 with its rank"),
    "a rank that is left out": (changed(b" 275\n", b" 276\n"), "its ranks are not 0, 1, 2 and so on, each once"),
    "a rank that comes twice": (changed(b" 275\n", b" 274\n"), "its ranks are not 0, 1, 2 and so on, each once"),
    "a token that comes twice": (lambda data: data + encoded(b"a") + b" 276\n", "line 277 has a token for the second"),
    "a byte that is missing": (changed(encoded(b"a") + b" ", encoded(b"a\n") + b" "), "1 of the 256 single bytes"),
    "a huge token": (lambda data: data + encoded(b"a" * 9000) + b" 276\n", "its tokens are too long"),
    "many long tokens": (
        lambda data: data + b"".join(encoded(b"%0999d" % i) + b" %d\n" % (276 + i) for i in range(99)),
        "its tokens are too long",
    ),
    "a huge file": (lambda data: data + b"\n" * (17 << 20), "larger than 16 MiB"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused(damage, message, tmp_path):
    path = write_tiktoken(tmp_path / "t", RANKS) / "tiktoken.model"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TextError, match=message) as caught:
        tokenizer_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("fetch the file again")
    assert "\n" not in str(caught.value)


def test_the_longest_tokens_take_a_moment(tmp_path):
    """Each pair of neighbours is a token, and one of the first ids: no search for the next pair is short."""
    ranks = BYTES | {bytes(pair): 256 + i for i, pair in enumerate(product(b"ab", repeat=2))}
    longest = b"ab" * 4000
    ranks[longest] = len(ranks)
    assert sum(len(token) ** 2 for token in ranks) < tiktoken_file._MAX_WORK
    tokenizer = load_tokenizer(write_tiktoken(tmp_path / "t", ranks))
    assert tokenizer.token_bytes(ranks[longest]) == longest


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "tiktoken.model"
    path.write_bytes(file_of(dict(reversed(RANKS.items()))))
    assert tiktoken_file._read_ranks(path) == RANKS
