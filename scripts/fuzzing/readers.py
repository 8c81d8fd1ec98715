"""The readers, each with small sound files to begin with, and a function that reads one as the program would."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from ml_dtypes import float8_e4m3fn
from safetensors.numpy import save

from fuzzing import cache_files, mcp_messages, mmproj_files
from tinychat.chat.workspace import resumed
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.checkpoint.packed import unpack_weights
from tinychat.checkpoint.pytorch_file import PytorchFile
from tinychat.checkpoint.safetensors_file import SafetensorsFile
from tinychat.checkpoint.small_floats import weight_of_expert
from tinychat.checkpoint.tensors import Tensor, open_tensors
from tinychat.commands.batch_results import BatchResults
from tinychat.commands.batch_tasks import read_tasks
from tinychat.configuration import STARTER, parse_configuration
from tinychat.conversation.history import Transcript
from tinychat.conversation.session_file import from_json, to_json
from tinychat.errors import TinychatError
from tinychat.generate.grammar import Constraint, Grammar
from tinychat.generate.grammar_tokens import GrammarTokens
from tinychat.generate.request import Request
from tinychat.models.architectures import parse_config
from tinychat.models.embedder import PROMPTS, embedder_files, read_embedder
from tinychat.models.folder import header_of, open_model_folder
from tinychat.models.layout import Quantization, tensor_specs
from tinychat.rows.columns import RowColumns
from tinychat.rows.locations import Location, arrow
from tinychat.rows.sources import RowReader
from tinychat.store.external_models import OLLAMA, FoundModel
from tinychat.store.local import list_models
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.loading import load_tokenizer
from tinychat.text.stop import stop_ids
from tinychat.text.template import load_template

TEXTS = ["Hello world", "  two  spaces\n\t日本語 🎉", "a" * 60 + "!", "<s>x</s> <|end|>", "\0\x1b\ud800", ""]
TERNARY = {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}}
SMALL_FLOATS = {"quantization_config": {"quant_method": "modelopt", "weight_block_size": [16, 32]}}
EXPERTS = "x.experts.w2_weight"
PACKING = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi </s>"},
    {"role": "assistant", "content": "<think>hm</think> yes"},
    {"role": "user", "content": "why?"},
]


@dataclass(frozen=True)
class Reader:
    """What is mutated, and who reads it.

    Attributes
    ----------
    name : str
    file : str
        Name that the mutated file gets.
    seeds : tuple of bytes
        Sound files.
    read : callable
        Given the folder; raises a TinychatError where the file is refused.
    beside : mapping
        Other files of the folder.
    """

    name: str
    file: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]
    beside: Mapping[str, bytes] = field(default_factory=dict)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0},
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False, "special": True},
    "pad_token": "<|end|>",
    "legacy": False,
    "add_bos_token": True,
    "added_tokens_decoder": {"5": {"content": "<|end|>", "special": True, "rstrip": True}},
    "chat_template": [{"name": "default", "template": "{% for m in messages %}{{ m.content }}</s>{% endfor %}"}],
}
TIKTOKEN_CONFIG = {
    "tokenizer_class": "TikTokenTokenizer",
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "added_tokens_decoder": {
        "262": {"content": "[BOS]", "special": True},
        "263": {"content": "[EOS]", "special": True},
        "270": {"content": "<|end|>", "special": False, "rstrip": True},
    },
    "chat_template": "{% for m in messages %}{{ m.content }}[EOS]{% endfor %}",
}
TEMPLATES = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}{{ eos_token }}{% endfor %}",
    "{%- set ns = namespace(last=0) -%}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{{ messages[ns.last].content.split('</think>')[-1].strip('\\n') ~ '%s' % ns.last }}",
    "{% macro f(x, n=2) %}{{ '{:>5}|{}'.format(x, n) }}{% endmacro %}{{ f(messages|length) }}"
    "{{ messages|tojson(indent=2) }}{{ messages|map(attribute='role')|join(', ')|replace('u', 'v') }}",
)
SCHEMAS = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]+$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120, "multipleOf": 5},
            "tags": {"type": "array", "items": {"enum": ["a", None, 2.5]}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    {"$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}, "allOf": [{"$ref": "#/$defs/n"}]},
)
GRAMMARS = (b'start: /[a-z]{1,3}/ WORD+\nWORD: "a" | "b"{2}\n', b'root ::= "a" | [0-9]+')
CONFIGURATIONS = (
    re.sub("^# (?=[a-z_]+ =|\\[)", "", STARTER, flags=re.MULTILINE).encode(),
    b'model = "a"\n[models."b c"]\nkv = "f16"\n[roles.r]\nsystem = """x\ny"""\nstop = ["a", "b"]\n[aliases]\ns = "t"\n',
)
TASKS = (
    b'{"prompt": "a", "max_tokens": 3, "temperature": 0.5, "stop": ["x"]}\n'
    b'{"id": "b", "messages": [{"role": "user", "content": "hi"}], "seed": 7, "top_k": 3, "top_p": 0.9}\n'
    b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]},'
    b' {"role": "tool", "content": "x", "tool_call_id": "a", "name": "f"}]}\n'
)
SESSION = {
    "format": 1,
    "model": "demo",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "partial": True}],
    "settings": {"temperature": 0.5, "seed": None},
    "stop": ["x"],
}
CALL = {"id": "a1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
TALK = [
    {"role": "user", "content": "Is it warm?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "Hm."},
    {"role": "tool", "content": "12 degrees", "tool_call_id": "a1", "name": "weather"},
    {"role": "assistant", "content": "", "partial": True},
]
CHANGES = {"past": [{"kept": 0, "tail": []}, {"kept": 0, "tail": TALK[:1]}], "future": [{"kept": 3, "tail": TALK[3:]}]}
SESSION_OF_TOOLS = SESSION | {"format": 2, "messages": TALK, "history": CHANGES}
F32 = {"method": "f32", "group_size": 32, "int8": [], "frequent": 0}
DESCRIPTION = {"format": 2, "quantization": F32, "source": "owner/name"}
NAMES = ["model.embed_tokens.weight", "model.norm.weight"]


@cache
def tokenizer_json() -> bytes:
    """Return a small BPE tokenizer with byte fallback, in the manner of Llama 2."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "h", "e", "l", "o", "he", "ll", "hell", "▁w", "w"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("▁", "w")]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in pieces[:3]])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str().encode()


@cache
def byte_level_json() -> bytes:
    """Return a small byte-level tokenizer, in the manner of Llama 3."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll"]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("l", "l")]))
    split = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[:2]])
    return tokenizer.to_str().encode()


@cache
def sentencepiece_model() -> bytes:
    """Return a small SentencePiece model."""
    import sentencepiece

    corpus = iter(["the quick brown fox jumps over the lazy dog"] * 50)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=corpus, model_writer=model, vocab_size=40, model_type="bpe",
        user_defined_symbols=["<|end|>"], minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def tiktoken_file() -> bytes:
    """Return a vocabulary of all bytes and some tokens of several."""
    tokens = [bytes([value]) for value in range(256)] + [b"ll", b"He", b"llo", b"Hello", "日本".encode(), b"  "]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def safetensors_file() -> bytes:
    """Return a file of two tensors."""
    header = {
        NAMES[0]: {"dtype": "F16", "shape": [4, 2], "data_offsets": [0, 16]},
        NAMES[1]: {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
    }
    text = _json(header)
    return struct.pack("<Q", len(text)) + text + bytes(24)


def pytorch_file() -> bytes:
    """Return the archive of a dictionary with one tensor, stored as torch stores it."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x08t" + b"Q"
    shape, stride, hooks = b"(K\x04K\x02t", b"(K\x02K\x01t", b"ccollections\nOrderedDict\n)R"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + stride + b"\x89" + hooks + b"tR"
    program = b"\x80\x02ccollections\nOrderedDict\n)R(" + text(NAMES[0]) + tensor + b"u."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), program)
        archive.writestr(zipfile.ZipInfo("archive/data/0"), np.arange(8, dtype=np.float32).tobytes())
    return file.getvalue()


@cache
def gguf_file(kind: str, *more: str, architecture: str = "llama", sees: bool = False) -> bytes:
    """Return a model in GGUF with a vocabulary of this kind, of `more` tokens, its matrices in blocks."""
    import gguf

    vocabulary = {"gpt2": ["<s>", "</s>", "a", "b", "ab", "c"], "llama": ["<unk>", "<s>", "</s>", "\u2581", "a", "b"]}
    tokens, layers = [*vocabulary[kind], *more], 1 + (architecture == "gemma4")
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / "model.gguf", architecture)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model(kind)
        writer.add_token_list(tokens)
        writer.add_token_types([2 if token == "<unk>" else 3 if token[0] == "<" else 1 for token in tokens])
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(tokens.index("<s>"))
        writer.add_eos_token_id(tokens.index("</s>"))
        writer.add_chat_template("{% for m in messages %}{{ m.content }}</s>{% endfor %}")
        linears = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        for name in (f"blk.{layer}.{linear}.weight" for layer in range(layers) for linear in linears):
            writer.add_tensor(name, np.zeros((32, 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        if sees:
            mmproj_files.add_tower(writer, architecture)
        norms = {"attn_norm": 32, "ffn_norm": 32}
        if architecture != "llama":
            norms |= {"attn_q_norm": 16, "attn_k_norm": 16}
            writer.add_sliding_window(16)
            writer.add_head_count_kv(2)
            writer.add_key_length(16)
        if architecture == "qwen3vl":
            writer.add_rope_dimension_sections([3, 3, 2, 0])
            writer.add_num_deepstack_layers(1)
        if architecture in ("gemma3", "gemma4"):
            norms |= {"post_attention_norm": 32, "post_ffw_norm": 32}
        if architecture == "gemma4":
            norms |= {"layer_output_scale": 1}
            writer.add_rope_freq_base(1e6)
            writer.add_key_length_swa(16)
            writer.add_sliding_window_pattern([True, False])
            writer.add_embedding_length_per_layer_input(0)
        for name, size in ((f"blk.{layer}.{name}", size) for layer in range(layers) for name, size in norms.items()):
            writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
        writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
        writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (Path(folder) / "model.gguf").read_bytes()


@cache
def packed_weights() -> bytes:
    """Return a weight of 16 rows and 32 columns as GPTQ packs it, all zero."""
    shapes = {"qweight": (4, 16), "qzeros": (1, 2), "scales": (1, 16), "g_idx": (32,)}
    types = {"scales": np.float16}
    return save({f"x.{name}": np.zeros(shape, types.get(name, np.int32)) for name, shape in shapes.items()})


@cache
def ternary_weights() -> bytes:
    """Return a weight of 16 rows and 32 columns as BitNet packs it, all -1."""
    return save({"x.weight": np.zeros((4, 32), np.uint8), "x.weight_scale": np.ones(1, np.float32)})


@cache
def small_float_weights() -> bytes:
    """Return a weight of 16 rows and 32 columns in NVFP4, all 0."""
    factor, scales = np.ones(1, np.float32), np.ones((16, 2), float8_e4m3fn)
    return save({"x.weight": np.zeros((16, 16), np.uint8), "x.weight_scale": scales, "x.weight_scale_2": factor})


@cache
def experts_of_floats(is_nvfp4: bool) -> bytes:
    """Return the weights of two experts, each of 16 rows and 32 columns, in NVFP4 or MXFP8, all 0."""
    tensors: dict[str, np.ndarray] = {
        "": np.zeros((2, 16, 32), float8_e4m3fn),
        "_scale": np.full((2, 16, 1), 127, np.uint8),
    }
    if is_nvfp4:
        numbers = {f"_{name}": np.ones(2, np.float32) for name in ("amax", "outer_scale_denominator")}
        tensors = {"": np.zeros((2, 16, 16), np.uint8), "_scale": np.ones((2, 16, 2), float8_e4m3fn)} | numbers
    return save({f"{EXPERTS}{end}": data for end, data in tensors.items()})


def model_weights() -> bytes:
    """Return the weights that the description and configuration here ask for, all zero."""
    specs = tensor_specs(parse_config(CONFIG, "config.json"), Quantization("f32", 32))
    return header_of(specs)[0] + bytes(sum(spec.bytes for spec in specs.values()))


def batch_results() -> bytes:
    """Return what a batch writes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in.jsonl").write_bytes(TASKS)
        _read_tasks(Path(folder))
        return (Path(folder) / "out.jsonl").read_bytes()


def read_tokenizer(folder: Path) -> None:
    """Load a tokenizer and its template, and use all that they offer."""
    tokenizer = load_tokenizer(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        tokenizer.decode(ids)
        tokenizer.encode_rendered(text)
        detokenizer = Detokenizer(tokenizer)
        "".join([*map(detokenizer.add, ids), detokenizer.finish()]).encode()
    for token_id in range(-2, min(tokenizer.vocab_size + 3, 100)):
        tokenizer.token_bytes(token_id)
    template = load_template(folder, tokenizer)
    stop_ids(folder, tokenizer, template)
    _ = template.opens_thinking
    template.render_ids(MESSAGES)


def _read_all(file: SafetensorsFile | PytorchFile) -> None:
    for name in file.names():
        shape = file.shape(name)
        file.read(name, 0, shape[0] if shape else 1)


def _read_checkpoint(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name in checkpoint.tensors.by_name:
        checkpoint.tensors.read(name)


def _read_packed(folder: Path) -> None:
    tensors = unpack_weights(open_tensors(folder))
    if "x.weight" in tensors.by_name:
        _read_weight(tensors["x.weight"])


def _read_experts(folder: Path) -> None:
    tensors = open_tensors(folder)
    if (weight := weight_of_expert(tensors, EXPERTS, 1, 2)) is not None:
        _read_weight(weight)


def _read_weight(weight: Tensor) -> None:
    weight.read(0, weight.shape[0])
    if weight.form:
        weight.read_codes(0, 16)


def _read_gguf(folder: Path) -> None:
    with unpacked(folder / "model.gguf") as checkpoint:
        _read_checkpoint(checkpoint)
        read_tokenizer(checkpoint)


def _list_and_read_gguf(folder: Path) -> None:
    FoundModel("model", OLLAMA, folder / "model.gguf").problem()
    _read_gguf(folder)


def _read_store(folder: Path) -> None:
    models = folder / "models" / "one"
    models.mkdir(parents=True)
    (models / "tinychat.json").write_bytes((folder / "tinychat.json").read_bytes())
    list_models()
    open_model_folder(folder)


def _read_tasks(folder: Path) -> None:
    rows = RowReader(Location(str(folder / "in.jsonl")))
    tasks = [*read_tasks(rows, Request(max_tokens=5))]
    with BatchResults(folder / "out.jsonl", tasks, ()) as results:
        for job in tasks:
            error = TinychatError(job.error or "no model answers here")
            results.add([results.outcome(job, results.digest(job), "model", error)])
    with BatchResults(folder / "out.jsonl", tasks, ()) as results:
        assert results.done + len(results.again) == len(tasks)


def row_files() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of files with rows; Parquet and .zst if their package is installed."""
    text = "".join(f'{i},"a ""text"", of\nlines {i}",{i % 7}\n' for i in range(40)).encode()
    yield "rows.csv", b"id,prompt,seed\n" + text
    yield "rows.jsonl.gz", gzip.compress(TASKS, mtime=0)
    if find_spec("pyarrow"):
        pyarrow = arrow()
        yield "rows.jsonl.zst", pyarrow.compress(TASKS, codec="zstd", asbytes=True)
        table = pyarrow.table({"id": [*range(40)], "prompt": ["a text"] * 40, "seeds": [[1, None]] * 40})
        pyarrow.parquet.write_table(table, sink := io.BytesIO(), row_group_size=25)
        yield "rows.parquet", sink.getvalue()


def _read_rows(name: str, folder: Path) -> None:
    for task in read_tasks(RowReader(Location(str(folder / name))), Request(), RowColumns(template="{prompt}")):
        assert task.error or task.prompt


def _read_results(folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(TASKS)
    tasks = read_tasks(RowReader(Location(str(folder / "in.jsonl"))), Request(max_tokens=5))
    BatchResults(folder / "out.jsonl", tasks, ()).__exit__(None, None, None)


def _constrain(grammar: Grammar) -> None:
    tokens = [bytes([value]) for value in range(256)] + [b'{"', b'":', b"true", b"</s>"]
    tokenizer = SimpleNamespace(
        token_bytes=tokens.__getitem__,
        special_ids=frozenset({259}),
        encode_rendered=str.encode,
        thought_marks=None,
    )
    state = Constraint(grammar, GrammarTokens(tokenizer, len(tokens), {259})).start()
    for _ in range(20):
        if state.finished:
            break
        state.accept(int(np.flatnonzero(state.allowed())[0]))


def _read_session(folder: Path) -> None:
    session = from_json((folder / "session.json").read_bytes(), "session.json")
    to_json(session)
    transcript = Transcript()
    transcript.replace_messages(*resumed(session)[:2])
    for move, steps in ((transcript.undo, "past"), (transcript.redo, "future")):
        for _ in getattr(transcript.history, steps):
            move()


@cache
def readers() -> tuple[Reader, ...]:
    """Return all of them."""
    config, settings = _json(CONFIG), _json(TOKENIZER_CONFIG)
    weights, archive, ternary = safetensors_file(), pytorch_file(), ternary_weights()
    index = _json({"metadata": {"total_size": 24}, "weight_map": dict.fromkeys(NAMES, "model-1.safetensors")})
    plain = {"tokenizer.json": tokenizer_json()}
    embedder = {name: text.encode() for name, text in embedder_files("last").items()}
    embedder[PROMPTS] = _json({"prompts": {"query": "Query:"}, "default_prompt_name": "query"})
    return (
        Reader("config", "config.json", (config,), _read_checkpoint, {"model.safetensors": weights}),
        Reader("tokenizer", "tokenizer.json", (tokenizer_json(), byte_level_json()), read_tokenizer),
        Reader("llama", "tokenizer.json", (tokenizer_json(),), read_tokenizer, {"tokenizer_config.json": settings}),
        Reader("sentencepiece", "tokenizer.model", (sentencepiece_model(),), read_tokenizer,
               {"tokenizer_config.json": settings}),
        Reader("settings", "tokenizer_config.json", (settings,), read_tokenizer,
               {"tokenizer.model": sentencepiece_model()}),
        Reader("tiktoken", "tiktoken.model", (tiktoken_file(),), read_tokenizer,
               {"tokenizer_config.json": _json({**TIKTOKEN_CONFIG, "added_tokens_decoder": {}})}),
        Reader("tiktoken_settings", "tokenizer_config.json", (_json(TIKTOKEN_CONFIG),), read_tokenizer,
               {"tiktoken.model": tiktoken_file()}),
        Reader("template", "chat_template.jinja", tuple(t.encode() for t in TEMPLATES), read_tokenizer, plain),
        Reader("safetensors", "model.safetensors", (weights,),
               lambda folder: _read_all(SafetensorsFile(folder / "model.safetensors"))),
        Reader("pytorch", "pytorch_model.bin", (archive,),
               lambda folder: _read_all(PytorchFile(folder / "pytorch_model.bin"))),
        Reader("gguf", "model.gguf", (gguf_file("gpt2"), gguf_file("llama")), _read_gguf),
        Reader("gguf_header", "model.gguf", (gguf_file("gpt2"), gguf_file("llama")), _list_and_read_gguf),
        *(Reader(f"gguf_mmproj{ending}", mmproj_files.NAME, (mmproj_files.mmproj_file(name),), mmproj_files.read_mmproj,
                 {mmproj_files.MODEL: gguf_file("gpt2", token, architecture=name)})
          for name, (ending, token) in mmproj_files.KINDS.items()),
        *(Reader(f"gguf_mmproj_inside{ending}", mmproj_files.MODEL,
                 (gguf_file("gpt2", token, architecture=name, sees=True),), mmproj_files.read_own_tower)
          for name, (ending, token) in mmproj_files.KINDS.items() if name in mmproj_files.INSIDE),
        Reader("packed", "model.safetensors", (packed_weights(),), _read_packed, {"config.json": _json(PACKING)}),
        Reader("packing", "config.json", (_json(PACKING),), _read_packed, {"model.safetensors": packed_weights()}),
        Reader("ternary", "model.safetensors", (ternary,), _read_packed, {"config.json": _json(TERNARY)}),
        Reader("ternary_settings", "config.json", (_json(TERNARY),), _read_packed, {"model.safetensors": ternary}),
        Reader("small_floats", "model.safetensors", (small_float_weights(),), _read_packed,
               {"config.json": _json(SMALL_FLOATS)}),
        Reader("small_float_settings", "config.json", (_json(SMALL_FLOATS),), _read_packed,
               {"model.safetensors": small_float_weights()}),
        Reader("experts_of_floats", "model.safetensors", (experts_of_floats(True), experts_of_floats(False)),
               _read_experts),
        *(Reader(Path(name).parts[0], name, (embedder[name],), read_embedder, embedder) for name in embedder),
        Reader("index", "model.safetensors.index.json", (index,), open_tensors, {"model-1.safetensors": weights}),
        Reader("manifest", "tinychat.json", (_json(DESCRIPTION),), _read_store,
               {"config.json": config, "model.safetensors": model_weights()}),
        Reader("cache", cache_files.NAME, (cache_files.cache_file(),), cache_files.read_cache_file),
        Reader("session", "session.json", (_json(SESSION), _json(SESSION_OF_TOOLS)), _read_session),
        Reader("configuration", "config.toml", CONFIGURATIONS,
               lambda folder: parse_configuration((folder / "config.toml").read_bytes(), Path("config.toml"))),
        Reader("mcp_servers", mcp_messages.SERVERS, (mcp_messages.SOUND_SERVERS,), mcp_messages.read_servers),
        Reader("mcp_messages", mcp_messages.MESSAGES, (mcp_messages.SOUND_MESSAGES,), mcp_messages.read_messages),
        Reader("tasks", "in.jsonl", (TASKS,), _read_tasks),
        *(Reader(name.replace(".", "_"), name, (data,), partial(_read_rows, name)) for name, data in row_files()),
        Reader("results", "out.jsonl", (batch_results(),), _read_results),
        Reader("schema", "schema.json", tuple(map(_json, SCHEMAS)),
               lambda folder: _constrain(Grammar.from_schema((folder / "schema.json").read_text(errors="replace")))),
        Reader("grammar", "grammar.lark", GRAMMARS,
               lambda folder: _constrain(Grammar.from_text((folder / "grammar.lark").read_text(errors="replace")))),
    )  # fmt: skip


def read(reader: Reader, folder: Path) -> str:
    """Read a folder, and say how it ended: "read", "refused", or what must not be."""
    try:
        reader.read(folder)
    except TinychatError as error:
        return "refused" if "\n" not in str(error) else "an error of several lines"
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "?"
        return f"internal error {type(error).__name__} at {where}: {str(error)[:200]}"
    return "read"
