"""GGUF files by Ollama's own converter, with the names and keys that llama.cpp's has.

Many models of Ollama's library were written before it took llama.cpp's names over. Vision and speech are in the same
file; of these, `gguf_ollama_towers` reads the towers that are supported (github.com/ollama/ollama: convert/ wrote them,
llama/compat lists what differs).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from tinychat.checkpoint.gguf_header import TensorEntry
from tinychat.checkpoint.gguf_vocabulary import BYTE, NORMAL

# llama.cpp's names of architectures by Ollama's.
ARCHITECTURES = {"gptoss": "gpt-oss", "qwen25vl": "qwen2vl", "olmo3": "olmo2", "glm4moelite": "deepseek2"}
_TOKENS, _TEMPLATE = "tokenizer.ggml.", "tokenizer.chat_template"
_PER_TOKEN = ("tokens", "scores", "token_type")
# Of Gemma 3 4B, 12B and 27B, whose rotary angles are scaled; a file has no key for that.
_SCALED_GEMMA3 = (34, 48, 62)
_YARN = {
    "rope__scaling__beta_fast": "rope__scaling__yarn_beta_fast",
    "rope__scaling__beta_slow": "rope__scaling__yarn_beta_slow",
}


@dataclass
class Header:
    """Metadata and tensors of a file, changed in place."""

    architecture: str
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]

    def get(self, key: str) -> Any:
        """Return a value of the architecture."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def put(self, key: str, value: object) -> None:
        """Set a value of the architecture, if there is one."""
        if value is not None:
            self.metadata[f"{self.architecture}.{key}"] = value

    def default(self, key: str, value: object) -> None:
        """Set a value of the architecture that is missing."""
        if self.get(key) is None:
            self.put(key, value)

    def rename_keys(self, **names: str) -> None:
        """Add values of the architecture under another key, with ``__`` for dots, where that has none."""
        for theirs, key in names.items():
            self.default(key.replace("__", "."), self.get(theirs.replace("__", ".")))

    def rename(self, **parts: str) -> None:
        """Add a tensor under another name for each one with such a part in its own, between dots."""
        for name in [*self.tensors]:
            renamed = ".".join(parts.get(part, part) for part in name.split("."))
            self.tensors.setdefault(renamed, self.tensors[name])

    def rename_ends(self, end: str, renamed: str) -> None:
        """Add a tensor under another name for each one whose name ends so."""
        for name in [name for name in self.tensors if name.endswith(end)]:
            self.tensors.setdefault(f"{name.removesuffix(end)}{renamed}", self.tensors[name])

    def rows(self, tensor: str) -> int | None:
        """Return the rows of a tensor, or of each of its matrices; None without it."""
        entry = self.tensors.get(tensor)
        return None if entry is None or len(entry.shape) < 2 else entry.shape[-2]

    def text(self, key: str) -> str:
        """Return a text of the tokenizer, empty where there is none."""
        found = self.metadata.get(f"{_TOKENS}{key}")
        return found if isinstance(found, str) else ""

    def has_token(self, text: str) -> bool:
        """Return whether the vocabulary has a token."""
        tokens = self.metadata.get(f"{_TOKENS}tokens")
        return isinstance(tokens, list) and text in tokens

    def set_pre(self, name: str) -> None:
        """Name the pre-tokenizer where the file names none."""
        if self.text("pre") in ("", "default"):
            self.metadata[f"{_TOKENS}pre"] = name

    def add_template(self, name: str, mark: str = "") -> None:
        """Add our own chat template where the file has none, but a token `mark`: Ollama has it in its program."""
        if self.metadata.get(_TEMPLATE) is None and (not mark or self.has_token(mark)):
            source = files("tinychat.checkpoint").joinpath("templates", f"{name}.jinja")
            self.metadata[_TEMPLATE] = source.read_text(encoding="utf-8")

    def cut_vocabulary(self, rows: int | None) -> None:
        """Leave out the tokens, and the rows of the embedding, behind the first `rows`: those of images."""
        table = self.tensors.get("token_embd.weight")
        if rows is None or table is None or len(table.shape) != 2 or table.shape[0] < rows:
            return
        self.tensors["token_embd.weight"] = replace(table, shape=(rows, table.shape[1]))
        for key in _PER_TOKEN:
            values = self.metadata.get(f"{_TOKENS}{key}")
            if isinstance(values, list | np.ndarray):
                self.metadata[f"{_TOKENS}{key}"] = values[:rows]


def in_llama_cpp_form(metadata: dict[str, Any], tensors: dict[str, TensorEntry]) -> None:
    """Add what llama.cpp's converter would have written; a file of that stays the model that it is."""
    theirs = metadata.get("general.architecture")
    if not isinstance(theirs, str):
        return
    name = metadata["general.architecture"] = ARCHITECTURES.get(theirs, theirs)
    if name != theirs:
        own = f"{theirs}."
        metadata |= {f"{name}.{key.removeprefix(own)}": metadata[key] for key in [*metadata] if key.startswith(own)}
    change = _CHANGES.get(theirs)
    if change is not None:
        change(Header(name, metadata, tensors))


def _gpt_oss(header: Header) -> None:
    header.default("expert_feed_forward_length", header.rows("blk.0.ffn_gate_exps.weight"))
    header.default("rope.scaling.type", "yarn")
    header.metadata[f"{_TOKENS}pre"] = "gpt-4o"
    header.add_template("gpt_oss")
    header.rename(attn_out="attn_output", ffn_norm="post_attention_norm")
    header.rename_ends(".attn_sinks", ".attn_sinks.weight")


def _gemma(header: Header) -> None:
    header.metadata.setdefault(f"{_TOKENS}add_space_prefix", False)


def _embedding_gemma(header: Header) -> None:
    own = f"{header.architecture}."
    values = {key.removeprefix(own): value for key, value in header.metadata.items() if key.startswith(own)}
    header.architecture = header.metadata["general.architecture"] = "gemma-embedding"
    for key, value in values.items():
        if key not in ("attention.causal", "attention.sliding_window_pattern"):
            header.put(key, value)
    for theirs, name in (("dense.0", "dense_2"), ("dense.1", "dense_3"), ("norm", "output_norm")):
        if f"{theirs}.weight" in header.tensors:
            header.tensors.setdefault(f"{name}.weight", header.tensors[f"{theirs}.weight"])


def _gemma3(header: Header) -> None:
    if "dense.0.weight" in header.tensors:
        _embedding_gemma(header)
        return
    _gemma(header)
    is_theirs = (
        any(header.get(key) is not None for key in ("rope.global.freq_base", "rope.local.freq_base"))
        or header.get("attention.layer_norm_rms_epsilon") is None
        or any(name.startswith(("v.", "mm.")) for name in header.tensors)
    )
    if not is_theirs:
        return
    if header.get("rope.global.freq_base") is not None:
        # The first converter wrote Gemma 2's; no runner has ever read it.
        header.metadata.pop(f"{header.architecture}.final_logit_softcapping", None)
    names = {"rope__global__freq_base": "rope__freq_base", "rope__local__freq_base": "rope__freq_base_swa"}
    header.rename_keys(**names, **_YARN)
    header.default("attention.layer_norm_rms_epsilon", 1e-6)
    layers = header.get("block_count")
    if type(layers) is int and layers in _SCALED_GEMMA3 and header.get("rope.scaling.type") is None:
        header.put("rope.scaling.type", "linear")
        header.put("rope.scaling.factor", 8.0)
    header.add_template("gemma3", "<start_of_turn>")
    header.cut_vocabulary(header.rows("token_embd.weight"))


def _gemma3n(header: Header) -> None:
    _gemma(header)
    header.add_template("gemma3", "<start_of_turn>")
    header.rename_keys(rope__freq_base_local="rope__freq_base_swa", head_dim="attention__key_length")
    table, of_layers = header.rows("token_embd.weight"), header.rows("per_layer_token_embd.weight")
    if table == of_layers:
        return
    header.cut_vocabulary(of_layers)
    header.metadata[f"{_TOKENS}model"] = "llama"
    tokens, kinds = (header.metadata.get(f"{_TOKENS}{key}") for key in ("tokens", "token_type"))
    if isinstance(tokens, list) and isinstance(kinds, np.ndarray) and len(kinds) == len(tokens):
        kinds = header.metadata[f"{_TOKENS}token_type"] = kinds.copy()
        for i, token in enumerate(tokens):
            if isinstance(token, str) and token.startswith(("<0x", "<unused")):
                kinds[i] = BYTE if len(token) == len("<0x00>") else NORMAL


def _gemma4(header: Header) -> None:
    if header.text("model") == "llama" and f"{_TOKENS}merges" in header.metadata:
        header.metadata[f"{_TOKENS}model"] = "gemma4"
    header.rename_ends(".ffn_gate_inp.per_expert_scale", ".ffn_down_exps.scale")


def _mistral3(header: Header) -> None:
    header.rename_keys(
        **_YARN,
        rope__scaling__mscale_all_dim="rope__scaling__yarn_log_multiplier",
        rope__scaling_beta="attention__temperature_scale",
    )
    header.set_pre("tekken")


def _qwen3_5(header: Header) -> None:
    heads = header.get("attention.head_count_kv")
    if isinstance(heads, np.ndarray) and heads.dtype.kind in "iu" and len(heads):
        # Layers with states have none.
        header.put("attention.head_count_kv", int(max(heads)))
    header.rename_ends(".ssm_dt", ".ssm_dt.bias")


def _glm4_moe_lite(header: Header) -> None:
    # The sizes of heads stand where llama.cpp has those of the latent.
    size = header.get("attention.key_length")
    header.put("attention.key_length_mla", size)
    header.put("attention.value_length_mla", header.get("attention.value_length") or size)
    header.default("expert_weights_norm", True)
    header.metadata[f"{_TOKENS}pre"] = "glm4"


def _lfm2(header: Header) -> None:
    header.rename(output_norm="token_embd_norm")
    header.put("feed_forward_length", header.rows("blk.0.ffn_gate.weight"))
    header.set_pre("lfm2")


def _laguna(header: Header) -> None:
    header.rename_keys(
        **_YARN,
        rope__scaling__attn_factor="rope__scaling__yarn_attn_factor",
        rope__swa__dimension_count="rope__dimension_count_swa",
        rope__swa__freq_base="rope__freq_base_swa",
    )
    header.rename(attn_g="attn_gate")


def _qwen3_moe(header: Header) -> None:
    header.default("expert_feed_forward_length", header.rows("blk.0.ffn_gate_exps.weight"))


def _qwen3_vl(header: Header) -> None:
    if header.architecture == "qwen3vlmoe":
        _qwen3_moe(header)
    layers = header.get("vision.deepstack_visual_indexes")
    if isinstance(layers, np.ndarray):
        header.default("n_deepstack_layers", len(layers))


def _nemotron_h(header: Header) -> None:
    sizes = (header.rows(name) for name in header.tensors if name.endswith(".ffn_latent_in.weight"))
    header.default("moe_latent_size", next(sizes, None))
    header.rename(ffn_latent_in="ffn_latent_down", ffn_latent_out="ffn_latent_up")


def _llama(header: Header) -> None:
    # Files of Llama 3 from before llama.cpp told pre-tokenizers apart.
    tokens = header.metadata.get(f"{_TOKENS}tokens")
    if isinstance(tokens, list) and tokens[128006:128007] == ["<|start_header_id|>"]:
        header.set_pre("llama-bpe")


_CHANGES: Mapping[str, Callable[[Header], None]] = {
    "gptoss": _gpt_oss,
    **dict.fromkeys(("gemma", "gemma2"), _gemma),
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "mistral3": _mistral3,
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), _qwen3_5),
    "qwen3moe": _qwen3_moe,
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe"), _qwen3_vl),
    "glm4moelite": _glm4_moe_lite,
    "lfm2": _lfm2,
    "laguna": _laguna,
    "nemotron_h_moe": _nemotron_h,
    "llama": _llama,
}
