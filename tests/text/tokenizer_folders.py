"""Tokenizers for tests: trained here in a second, or made from the third-party data."""

import json
from functools import cache
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TEMPLATES = Path(__file__).parent / "templates"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Once upon a time, there was a little girl named Lily.",
    "def main(args):\n    for i in range(10):\n        print(i, args[i])\n\n    return 0\n",
    "user assistant system hello world, how are you today? I'm fine, thanks! Answer helpfully and briefly.",
    "Żółta łódź podwodna, naïve café, 日本語のテキスト, 你好世界, Привет мир, emoji 🎉 and 👩‍👩‍👧.",
    "<|im_end|> is spelled < | im _ end | > and </s> is < / s >, [INST] and [/INST] are text here.",
]

STYLES = {
    "llama2": ("sentencepiece", ["<s>", "</s>"], []),
    "llama3": (
        "byte-level",
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>"],
        [],
    ),
    "chatml": ("byte-level", ["<|endoftext|>", "<|im_end|>", "<|im_start|>"], []),
    "zephyr": ("sentencepiece", ["<s>", "</s>"], []),
    "mistral": (
        "sentencepiece",
        [
            "<s>",
            "</s>",
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ],
        [],
    ),
    "gemma": ("unigram", ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], []),
    "phi3": ("sentencepiece", ["<s>", "<|endoftext|>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>"], []),
    "qwen3": (
        "byte-level",
        ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    ),
    "smollm3": ("byte-level", ["<|begin_of_text|>", "<|im_end|>", "<|im_start|>"], ["<think>", "</think>"]),
    "granite": (
        "byte-level",
        ["<|end_of_text|>", "<fim_prefix>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"],
        [],
    ),
    "command_r": (
        "byte-level",
        [
            "<BOS_TOKEN>",
            "<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
        ],
        [],
    ),
    "deepseek": (
        "byte-level",
        ["<\uff5cbegin▁of▁sentence\uff5c>", "<\uff5cend▁of▁sentence\uff5c>"],
        ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>", "</think>"],
    ),
}
"""Template style -> kind of tokenizer, control tokens (begin and end first), other added tokens."""


def write_tokenizer(folder: Path, kind: str, special: list[str], added: list[str] = (), **config) -> Path:
    """Write tokenizer.json and tokenizer_config.json of a freshly trained tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_trained(kind, tuple(special), tuple(added)), encoding="utf-8")
    named = {"bos_token": special[0], "eos_token": special[1]} if len(special) > 1 else {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_style(folder: Path, style: str) -> Path:
    """Write a tokenizer that suits a template, and the template."""
    kind, special, added = STYLES[style]
    write_tokenizer(folder, kind, special, added)
    source = (TEMPLATES / f"{style}.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    return folder


@cache
def _trained(kind: str, special: tuple[str, ...], added: tuple[str, ...]) -> str:
    from tokenizers import AddedToken

    tokenizer = {"byte-level": _byte_level, "sentencepiece": _sentencepiece, "unigram": _unigram}[kind](special)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return tokenizer.to_str()


def _byte_level(special):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if special and special[0] == "<|begin_of_text|>":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special[0]} $A", special_tokens=[(special[0], tokenizer.token_to_id(special[0]))]
        )
    return tokenizer


def _byte_pieces(special):
    return ["<unk>", *special, *(f"<0x{value:02X}>" for value in range(256))]


def _sentencepiece(special):
    """BPE with byte fallback whose normalizer puts a space first, as Llama's own files have it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

    prefix = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    scratch = Tokenizer(models.BPE())
    scratch.normalizer = normalizers.Sequence(prefix)
    scratch.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, max_token_length=8, show_progress=False))
    trained = json.loads(scratch.to_str())["model"]
    pieces = _byte_pieces(special)
    vocab = {piece: index for index, piece in enumerate([*pieces, *(p for p in trained["vocab"])])}
    merges = [tuple(merge) for merge in trained["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = scratch.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", *special]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], vocab[special[0]])]
    )
    return tokenizer


def _unigram(special):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    scratch = Tokenizer(models.Unigram())
    scratch.pre_tokenizer = pre_tokenizers.Metaspace()
    scratch.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=300, show_progress=False))
    trained = json.loads(scratch.to_str())["model"]["vocab"]
    vocab = [(piece, 0.0) for piece in _byte_pieces(special)] + [(piece, score) for piece, score in trained]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", *special]])
    return tokenizer
