"""GGUF files against the programs that know them best: transformers' numbers, llama.cpp's token ids."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import encoders
import families
import gguf_files
import numpy as np
import pytest
import rankers

import tinychat
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.checkpoint.gguf_tokenizer import PRE_TOKENIZERS
from tinychat.checkpoint.gguf_vocabulary import FILE_ENDS, TURN_ENDS
from tinychat.engine.sequence import new_sequence
from tinychat.generate.ranking import PairIds
from tinychat.models.score_head import relevance
from tinychat.text.hard_texts import HARD_TEXTS
from tinychat.text.loading import load_tokenizer

LLAMA_TOKENIZER = Path(__file__).parents[3] / "shared" / "data" / "llama2-tokenizer.model"
# A file of a real model, beside those that are made here.
GGUF = os.environ.get("TINYCHAT_GGUF", "")
LLAMA_PYTHON = sys.executable if importlib.util.find_spec("llama_cpp") else os.environ.get("TINYCHAT_LLAMA_PYTHON", "")
needs_llama_cpp = pytest.mark.skipif(not LLAMA_PYTHON, reason="set TINYCHAT_LLAMA_PYTHON to a Python with llama_cpp")
TOKENIZE = """
import json, sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
texts = json.load(sys.stdin)
json.dump([model.tokenize(text.encode(), add_bos=False, special=False) for text in texts], sys.stdout)
"""
# Not those of which it takes something from the number of layers: Baichuan's rotation, EXAONE's windows. Nor gpt-oss:
# it rounds the bounds of YaRN to whole channels, which transformers and OpenAI do not.
# And its converter reorders all channels of Bamba's heads, of which half are rotated.
# Experts of Phi-MoE it chooses as Mixtral's.
LEFT_OUT = ("baichuan2-7b", "exaone4", "gpt-oss", "bamba", "phi-moe")
RUN = {name: variant for name, variant in gguf_files.BY_NAME.items() if name not in LEFT_OUT}
LOGITS = """
import json, sys, llama_cpp, numpy
ids = json.load(sys.stdin)
options = {"n_ctx": 64, "n_batch": 64, "n_threads": 1, "logits_all": True, "type_k": 0, "type_v": 0, "verbose": False}
model = llama_cpp.Llama(sys.argv[1], **options)
model.eval(ids)
numpy.save(sys.argv[2], numpy.array(model.scores[: len(ids)]))
"""


def write_vocabulary(kind, path):
    """Write one of the vocabularies that tests make. llama.cpp refuses that of the variants, which has no merges."""
    if kind == "llama":
        if not LLAMA_TOKENIZER.exists():
            pytest.skip(f"{LLAMA_TOKENIZER} is not there")
        return gguf_files.write_sentencepiece(path, LLAMA_TOKENIZER)
    if kind == "gemma4":
        return gguf_files.write_spelled_pairs(path)
    if kind == "file":
        if not GGUF:
            pytest.skip("set TINYCHAT_GGUF to a file of a real model")
        return Path(GGUF)
    return gguf_files.write_byte_pairs(path, kind)


# Where llama.cpp's own ways to cut differ from the patterns that models were published with, in marks and cases of
# letters and in wide spaces.
COARSER = ("gpt-4o", "llama4", "minimax-m2", "tiny_aya", "tekken", "youtu", "kimi-k2", "deepseek-llm", "deepseek-coder")
MORE_TEXTS = (
    "1234567 12 123 1 12345678901 1,234,567.89 ١٢٣٤",
    "नमस्ते दुनिया ภาษาไทย 1234",
    "안녕하세요 한글123 カタカナ漢字 你好，“”…—：ㄅㄆ",  # noqa: RUF001
    "a\n\n\nb \n \n c\r\n\r\nd\t\te",
    "x" + " " * 41 + "y" + " " * 6 + "\n" + " " * 10 + "z",
    "iPhone HTTPServer McDonald's we'Ve foo/bar//baz\n/\n",
    "print(x); // c++\n\treturn a!=b&&c;\n\n}",
)


def token_ids_of_llama_cpp(file, texts):
    """Return llama.cpp's token ids of each text, from a process of its own."""
    command = [LLAMA_PYTHON, "-c", TOKENIZE, file]
    result = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@needs_llama_cpp
@pytest.mark.parametrize("pre", [name for name in PRE_TOKENIZERS if name not in COARSER])
def test_texts_are_cut_as_by_llama_cpp(pre, tmp_path):
    texts = (*HARD_TEXTS, *MORE_TEXTS)
    file = gguf_files.write_trained_pairs(tmp_path / "vocabulary.gguf", pre, texts)
    with unpacked(file) as folder:
        tokenizer = load_tokenizer(folder)
    for text, expected in zip(texts, token_ids_of_llama_cpp(file, texts), strict=True):
        assert tokenizer.encode(text, add_bos=False) == expected, text


@needs_llama_cpp
# Not of Kimi: its own pattern cuts "iPhone" into two words, llama.cpp does not.
@pytest.mark.parametrize("kind", ["file", "llama", "gemma4", *(name for name in PRE_TOKENIZERS if name != "kimi-k2")])
def test_token_ids_are_llama_cpps(kind, tmp_path):
    file = write_vocabulary(kind, tmp_path / "vocabulary.gguf")
    with unpacked(file) as folder:
        tokenizer = load_tokenizer(folder)
    for text, expected in zip(HARD_TEXTS, token_ids_of_llama_cpp(file, HARD_TEXTS), strict=True):
        assert tokenizer.encode(text, add_bos=False) == expected, text


EMBED = """
import json, sys, llama_cpp, numpy
ids = json.load(sys.stdin)
options = {"n_ctx": 256, "n_batch": 256, "n_ubatch": 256, "n_threads": 1, "type_k": 0, "type_v": 0, "verbose": False}
pooling = getattr(llama_cpp, f"LLAMA_POOLING_TYPE_{sys.argv[3]}")
model = llama_cpp.Llama(sys.argv[1], embedding=True, pooling_type=pooling, **options)
model._batch.reset()
model._batch.add_sequence(ids, 0, True)
model._ctx.decode(model._batch)
if sys.argv[3] == "RANK":
    found = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)[:1]
else:
    found = [llama_cpp.llama_get_embeddings_ith(model._ctx.ctx, i)[: model.n_embd()] for i in range(len(ids))]
numpy.save(sys.argv[2], numpy.array(found))
"""


def embedded_by_llama_cpp(file, ids, pooling):
    """Return the hidden states of token ids, with the pooling NONE, or their score, with RANK."""
    target = file.with_suffix(".npy")
    command = [LLAMA_PYTHON, "-c", EMBED, file, target, pooling]
    result = subprocess.run(command, input=json.dumps(ids), capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return np.load(target)


@needs_llama_cpp
@pytest.mark.parametrize("variant", encoders.OF_LLAMA_CPP, ids=lambda variant: variant.name)
def test_hidden_states_of_encoders_are_llama_cpps(variant, tmp_path):
    if variant.name in encoders.NEWER:
        pytest.skip("llama-cpp-python has no build that knows it")
    file = gguf_files.write_variant(variant, tmp_path / "model.gguf")
    ids = [3 if token in (0, 1) else token for token in families.make_ids(variant)]
    expected = embedded_by_llama_cpp(file, ids, "NONE")
    with unpacked(file) as folder:
        model = tinychat.load(tinychat.convert(folder, tmp_path / "model", quant="f32"), context=256, kv="f32")
    (states,) = model.engine.hidden_states([new_sequence(model.engine, 256).chunk(ids, len(ids), 0)])
    assert np.max(np.abs(states - expected)) < 0.03 * np.std(expected)


@needs_llama_cpp
@pytest.mark.parametrize(("name", "labels"), [("bert", 1), ("modernbert-mean", 1), ("qwen3", 2)])
def test_scores_are_llama_cpps(name, labels, tmp_path):
    variant = rankers.BY_NAME[name]
    tensors = rankers.head_tensors(variant, labels)
    base = rankers.base_of(variant)
    if labels == 2:
        tensors.pop("cls.output.bias", None)
    file = gguf_files.write_variant(base, tmp_path / "model.gguf", pooling=4, rerank="{query} {document}", **tensors)
    ids = [3 if token in (0, 1) else token for token in families.make_ids(base)]
    (expected,) = embedded_by_llama_cpp(file, ids, "RANK")
    with unpacked(file) as folder:
        model = tinychat.load(tinychat.convert(folder, tmp_path / "model", quant="f32"), context=256, kv="f32")
    # llama.cpp takes all tokens for the first kind of text, and gives the share of the first of two labels.
    ((score,),) = next(model.ranking.score_ids([PairIds(ids, len(ids))]))
    assert abs((relevance(score) if labels == 2 else score) - expected) < 0.02


ENDS = """
import json, sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
vocabulary = llama_cpp.llama_model_get_vocab(model._model.model)
ids = range(llama_cpp.llama_vocab_n_tokens(vocabulary))
json.dump([i for i in ids if llama_cpp.llama_vocab_is_eog(vocabulary, i)], sys.stdout)
"""


@needs_llama_cpp
@pytest.mark.parametrize("left_out", [[], ["<|return|>"], ["<|return|>", "<|flush|>"]])
def test_turns_end_where_they_do_in_llama_cpp(left_out, tmp_path):
    found, tokens = check_ends(sorted(TURN_ENDS - {*left_out}), tmp_path)
    assert ("<|end|>" in [tokens[i] for i in found]) == (len(left_out) == 2)


@needs_llama_cpp
@pytest.mark.parametrize("end", sorted(FILE_ENDS))
def test_files_end_where_they_do_in_llama_cpp(end, tmp_path):
    found, tokens = check_ends([end], tmp_path)
    assert end in [tokens[i] for i in found]


def check_ends(names, tmp_path):
    """Compare the ends of a turn in a vocabulary with these tokens; return them and all tokens."""
    ends = ["<x>", "<y>", "<z>", "<other>", "<|role_end|>", *names]
    letters = gguf_files.byte_level_tokens(259)[0][3:]
    ids = dict(zip(("eos_token_id", "eot_token_id", "eom_token_id"), (1, 2, 3)), bos_token_id=0)
    kinds = [3] * (1 + len(ends)) + [1] * (len(letters) + 1)
    tokens = ["<s>", *ends, *letters, "ab"]
    file = gguf_files.write_vocabulary(
        tmp_path / "ends.gguf", "gpt2", tokens, kinds, pre="gpt-2", merges=["a b"], **ids
    )
    command = [LLAMA_PYTHON, "-c", ENDS, file]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    with unpacked(file) as folder:
        found = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert sorted(found) == json.loads(result.stdout)
    return found, tokens


def logits_of_llama_cpp(file, ids):
    """Return llama.cpp's logits of a file, from a process of its own: some files end it."""
    target = file.with_suffix(".npy")
    command = [LLAMA_PYTHON, "-c", LOGITS, file, target]
    result = subprocess.run(command, input=json.dumps(ids), capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return np.load(target)


@needs_llama_cpp
@pytest.mark.live
@pytest.mark.parametrize("name", RUN)
def test_logits_are_llama_cpps(name, tmp_path):
    """Within what its tables of GELU, in float16, make of them; keys and values are float32."""
    file = gguf_files.write_variant(RUN[name], tmp_path / f"{name}.gguf")
    ids = families.make_ids(RUN[name])[: families.SHORT]
    expected = logits_of_llama_cpp(file, ids)
    found = tinychat.load(tinychat.convert(file, tmp_path / "f32", quant="f32"), context=families.CONTEXT_SIZE)
    assert np.abs(found.logits(ids) - expected).max() < 2e-2 * expected.std()


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
# Not those with a size of heads of their own, which transformers does not read from such files.
@pytest.mark.parametrize("name", ["file", "smollm2", "qwen2-tied"])
def test_logits_are_transformers_own(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate", reason="transformers needs it for these files")
    import transformers_models

    if name == "file":
        file, ids = write_vocabulary("file", None), list(range(100, 140))
    else:
        variant = families.BY_NAME[name]
        file = gguf_files.write_variant(variant, tmp_path / "model.gguf")
        ids = families.make_ids(variant)[: families.SHORT]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    expected = transformers_models.logits(theirs, ids)
    made = tinychat.convert(file, tmp_path / "f32", quant="f32")
    found = tinychat.load(made, context=families.CONTEXT_SIZE).logits(ids)
    assert np.abs(found - expected).max() < 1e-3 * expected.std()
