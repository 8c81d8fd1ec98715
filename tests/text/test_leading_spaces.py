"""Texts with spaces in awkward places, in both formats of Llama-2's tokenizer, against the sentencepiece library."""

import itertools
import json
import random
from functools import cache

import pytest
from text.tokenizer_folders import DATA

from tinychat.text.detokenizer import Detokenizer
from tinychat.text.guard import guard, spelling_pattern
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import ChatTemplate

LLAMA2 = DATA / "llama2-tokenizer.model"
STORIES = DATA / "stories260K" / "tokenizer.model"
PARTS = [
    " ",
    "  ",
    "   ",
    "\u2581",
    "a",
    "Hello",
    "\n",
    "\t",
    "é",
    "🎉",
    "\0",
    "\u00a0",
    "\u3000",
    "</s>",
    "[INST]",
    "1",
]

# Ends of a model file that change its normalizer: see sentencepiece_tokenizer.
NORMALIZERS = {
    "file": b"",
    "no prefix": b"\x1a\x02\x18\x00",
    "spaces removed": b"\x1a\x02\x20\x01",
    "no prefix, spaces removed": b"\x1a\x04\x18\x00\x20\x01",
}

pytestmark = pytest.mark.skipif(not LLAMA2.is_file(), reason="third-party data is missing")


def hard_texts():
    pairs = ["".join(parts) for parts in itertools.product(PARTS, repeat=2)]
    draw = random.Random(1)
    return ["", *PARTS, *pairs, *("".join(draw.choices(PARTS, k=7)) for _ in range(1000))]


def library(model):
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=model)


def write_model(folder, model, **config):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def llama2_json():
    """Return Llama-2's tokenizer as transformers 4 converted it: merges by score, a Prepend normalizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    processor = library(LLAMA2.read_bytes())
    vocab = {processor.id_to_piece(number): number for number in range(len(processor))}
    merges = [
        (-processor.get_score(number), vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
        for piece, number in vocab.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    pairs = [merge[3:] for merge in sorted(merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str()


def write_json(folder, model_type="llama", **config):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(llama2_json())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


FOLDERS = {
    "model": lambda folder: write_model(folder, LLAMA2.read_bytes()),
    "model, legacy": lambda folder: write_model(folder, LLAMA2.read_bytes(), legacy=True),
    "json": write_json,
    "json, legacy": lambda folder: write_json(folder, legacy=True),
    "json of Mistral": lambda folder: write_json(folder, model_type="mistral"),
}


@pytest.fixture(params=FOLDERS)
def llama2(request, tmp_path):
    return load_tokenizer(FOLDERS[request.param](tmp_path / "t"))


def stream(tokenizer, ids):
    detokenizer = Detokenizer(tokenizer)
    return "".join([*map(detokenizer.add, ids), detokenizer.finish()])


def test_the_prefix_comes_before_a_space_too(llama2):
    assert llama2.encode("Hello") == [1, 15043]
    assert llama2.encode(" Hello") == [1, 29871, 15043]
    assert llama2.encode("  Hello") == [1, 259, 15043]


def test_texts_have_the_ids_of_the_library_and_come_back(llama2):
    theirs = library(LLAMA2.read_bytes())
    for text in hard_texts():
        ids = theirs.encode(text)
        assert llama2.encode(text, add_bos=False) == ids, text
        assert llama2.decode(ids) == stream(llama2, ids) == theirs.decode(ids) == text.replace("\u2581", " "), text


def test_rendered_templates_have_the_ids_of_the_library(llama2):
    """Whole where no special token stands; the same with a guarded spelling in it."""
    theirs = library(LLAMA2.read_bytes())
    template = ChatTemplate("{{ messages[0].content }}", llama2, "test")
    special = spelling_pattern(["</s>"])
    for text in hard_texts()[:400]:
        ids = theirs.encode(text)
        assert llama2.encode_rendered(guard(text, special)) == ids, text
        assert template.render_ids([{"role": "user", "content": text}]) == ids, text


@pytest.mark.parametrize("kind", ["model", "json"])
@pytest.mark.parametrize("legacy", [True, False])
def test_after_a_special_token(tmp_path, kind, legacy):
    """With `legacy` every stretch is a text of its own; else it continues, without a prefix."""
    model = LLAMA2.read_bytes()
    tokenizer = load_tokenizer(FOLDERS[f"{kind}, legacy" if legacy else kind](tmp_path / "t"))
    stretches = library(model if legacy else model + NORMALIZERS["no prefix"])
    for text in hard_texts():
        if "</s>" not in text:
            assert tokenizer.encode_rendered(f"</s>{text}") == [2, *stretches.encode(text)], text


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("path", [LLAMA2, STORIES], ids=["llama2", "stories260K"])
def test_the_normalizer_of_the_file_holds(tmp_path, path, name):
    model = path.read_bytes() + NORMALIZERS[name]
    tokenizer, theirs = load_tokenizer(write_model(tmp_path / "t", model)), library(model)
    for text in hard_texts():
        ids = theirs.encode(text)
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert stream(tokenizer, ids) == tokenizer.decode(ids)
        if "\u2581" not in text:
            assert tokenizer.decode(ids) == theirs.decode(ids), text


@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_the_settings_may_change_the_prefix(tmp_path, add_prefix_space):
    model = LLAMA2.read_bytes()
    changed = library(model if add_prefix_space else model + NORMALIZERS["no prefix"])
    other = model + NORMALIZERS["no prefix"] if add_prefix_space else model
    tokenizer = load_tokenizer(write_model(tmp_path / "t", other, add_prefix_space=add_prefix_space))
    for text in hard_texts()[:200]:
        ids = changed.encode(text)
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == changed.decode(ids)
