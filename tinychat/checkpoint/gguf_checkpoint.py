"""A GGUF file as a Hugging Face checkpoint: its configuration, its tensors by their names there, its text files.

llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py) renames tensors, and for some architectures
reorders the rows of queries and keys, since they are rotated in neighbouring pairs there: both is undone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import adjusted
from tinychat.checkpoint.gguf import ENDING, first_parts
from tinychat.checkpoint.gguf_families import FAMILIES as GGUF_FAMILIES
from tinychat.checkpoint.gguf_families import GgufFamily, GgufValues, positive
from tinychat.checkpoint.gguf_file import GgufFile, open_gguf
from tinychat.checkpoint.gguf_tokenizer import tokenizer_files
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.joined import JoinedTensor
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import TensorFile, Tensors
from tinychat.errors import CheckpointError
from tinychat.json_file import one_line
from tinychat.models.architectures import linears, norms, parse_config, supported_families, tables, unsupported
from tinychat.models.config import ModelConfig
from tinychat.models.passthrough import Form
from tinychat.models.tensors import Linear

# GGUF's names of a linear's parts, by how many of them a family has as tensors of their own.
LINEARS: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "embed_tokens": {1: ("token_embd",)},
    "qkv_proj": {1: ("attn_qkv",), 3: ("attn_q", "attn_k", "attn_v")},
    "o_proj": {1: ("attn_output",)},
    "gate_up_proj": {1: ("ffn_up",), 2: ("ffn_gate", "ffn_up")},
    "up_proj": {1: ("ffn_up",)},
    "down_proj": {1: ("ffn_down",)},
    "router": {1: ("ffn_gate_inp",), 2: ("ffn_gate_inp", "ffn_gate_inp_shexp")},
    "expert_gate_up_proj": {2: ("ffn_gate_exps", "ffn_up_exps")},
    "expert_down_proj": {1: ("ffn_down_exps",)},
    "shared_gate_up_proj": {2: ("ffn_gate_shexp", "ffn_up_shexp")},
    "shared_down_proj": {1: ("ffn_down_shexp",)},
    "conv_in_proj": {1: ("shortconv.in_proj",)},
    "conv_out_proj": {1: ("shortconv.out_proj",)},
    "lm_head": {1: ("output",)},
}
TABLES = {"embed_positions": "position_embd"}
# That are rotated in a head.
_MAX_PAIRS = 1 << 16
# What a linear's rows are of that are one tensor in a checkpoint and two in a file.
HALVES = ("gate", "up")


@contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """Give a checkpoint folder that stands for a GGUF file: its text files, and links to its tensors.

    Raises
    ------
    CheckpointError, UnsupportedModelError
        If the file is damaged, or its architecture or tokenizer is not implemented.
    """
    files = open_gguf(file)
    with TemporaryDirectory(prefix="tinychat-gguf-") as folder:
        place = Path(folder) / file.stem
        place.mkdir()
        for name, content in text_files(files).items():
            (place / name).write_bytes(content)
        for part in files:
            # Some programs give their files no ending.
            name = part.path.name if part.path.suffix.lower() == ENDING else f"{part.path.name}{ENDING}"
            (place / name).symlink_to(part.path.resolve())
        yield place


def gguf_in(folder: Path) -> Path:
    """Return the GGUF file of a folder that has one, the first part of a split one.

    Raises
    ------
    CheckpointError
        If there are several models, or none.
    """
    models = first_parts(sorted(path for path in folder.iterdir() if path.suffix.lower() == ENDING))
    if len(models) > 1:
        names = ", ".join(one_line(path.name, 60) for path in models[:4])
        raise CheckpointError(f"{folder} holds several GGUF files ({names}): give the path of one")
    if not models:
        raise CheckpointError(f"{folder} holds no GGUF file of a language model: give the path of one")
    return models[0]


def text_files(files: Sequence[GgufFile]) -> dict[str, bytes]:
    """Return configuration, tokenizer and chat template as the files that a checkpoint folder would have.

    Raises
    ------
    CheckpointError, UnsupportedModelError, TextError
        If a value is missing or cannot be, or the architecture or tokenizer is not implemented.
    """
    metadata = files[0].metadata
    config = config_of(files)
    generation, tokenizer = tokenizer_files(metadata, str(files[0].path))
    config |= {key: generation[key] for key in ("bos_token_id", "eos_token_id") if key in generation}
    texts = {"config.json": config, "generation_config.json": generation}
    contents = {name: json.dumps(value, default=repr).encode() for name, value in texts.items()}
    # Checked here, where the file's name is known: values are still as the file has them.
    parse_config(json.loads(contents["config.json"]), f"{files[0].path} (as config.json)")
    return contents | tokenizer


def config_of(files: Sequence[GgufFile]) -> dict[str, Any]:
    """Return what ``config.json`` would say.

    Raises
    ------
    UnsupportedModelError
        If the architecture is not implemented.
    CheckpointError
        If there is no embedding.
    """
    metadata, source = files[0].metadata, files[0].path
    name = check_architecture(metadata, source)
    shapes = {tensor: found.shape for file in files for tensor, found in file.tensors.items()}
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{source} has no tensor token_embd.weight: it does not hold a language model")
    known, values = GGUF_FAMILIES[name], GgufValues(metadata, name, frozenset(shapes), str(source))
    architecture = known.architecture if isinstance(known.architecture, str) else known.architecture(values)
    family = supported_families()[architecture]
    config = values.common() | {"vocab_size": shapes["token_embd.weight"][0]}
    config |= _rope(files, values, config, family.partial_rotary)
    config |= known.extra(values, config)
    return {"architectures": [architecture]} | {family.names.get(key, key): value for key, value in config.items()}


def check_architecture(metadata: Mapping[str, Any], source: Path) -> str:
    """Return the architecture that the metadata of a file name.

    Raises
    ------
    UnsupportedModelError
        If it is not implemented.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        raise unsupported(str(source), f"architecture {one_line(str(name), 40)!r}")
    experts = GgufValues(metadata, name, frozenset(), str(source)).get("expert_count")
    if experts and not GGUF_FAMILIES[name].experts:
        raise unsupported(str(source), f"a mixture of experts of {name}")
    return name


def _rope(
    files: Sequence[GgufFile], values: GgufValues, config: Mapping[str, Any], partial_rotary: bool
) -> dict[str, Any]:
    """Return the keys that tell of the rotary embedding.

    What llama.cpp divides each pair's frequency by stands in tensors, for Llama 3.1 as for Phi-3: LongRoPE says so.
    """
    scaling = {
        key: values.get(f"rope.scaling.{key}")
        for key in ("type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast", "yarn_beta_slow")
    }
    trained = scaling["original_context_length"] or config.get("max_position_embeddings")
    found: dict[str, Any] = {}
    head_dim = positive(config.get("head_dim"), 0)
    rotary_dim = values.number("rope.dimension_count", 0)
    if head_dim and rotary_dim and (partial_rotary or rotary_dim != head_dim):
        found["partial_rotary_factor"] = rotary_dim / head_dim
    factors = {
        kind: _vector(files, f"{name}.weight")
        for kind, name in (
            ("both", "rope_freqs"),
            ("short_factor", "rope_factors_short"),
            ("long_factor", "rope_factors_long"),
        )
    }
    if factors["both"] is not None:
        both = factors["both"]
        section = {"short_factor": both, "long_factor": both, "attention_factor": 1.0}
        return found | {"rope_scaling": {"rope_type": "longrope", **section}}
    if factors["short_factor"] is not None and factors["long_factor"] is not None:
        section = {kind: factors[kind] for kind in ("short_factor", "long_factor")}
        section |= {"attention_factor": scaling["attn_factor"]} if scaling["attn_factor"] else {}
        scaled = {"rope_type": "longrope", **section, "original_max_position_embeddings": trained}
        return found | {"rope_scaling": scaled, "original_max_position_embeddings": trained}
    if scaling["type"] in (None, "none"):
        return found
    section = {"rope_type": scaling["type"], "factor": scaling["factor"]}
    if scaling["type"] == "yarn":
        section["original_max_position_embeddings"] = trained
        betas = {"beta_fast": scaling["yarn_beta_fast"], "beta_slow": scaling["yarn_beta_slow"]}
        section |= {key: value for key, value in betas.items() if value is not None}
    return found | {"rope_scaling": section}


def _vector(files: Sequence[GgufFile], name: str) -> list[float] | None:
    """Return the numbers of a tensor of one axis; None where there is none of this name."""
    for file in files:
        if name in file.tensors:
            file.check_readable(name)
            shape = file.tensors[name].shape
            if len(shape) != 1 or shape[0] > _MAX_PAIRS:
                raise CheckpointError(f"{file.path}: tensor {name} has shape {shape}: download the file again")
            numbers: list[float] = file.read(name, 0, shape[0]).astype(np.float64).tolist()
            return numbers
    return None


class GgufTensors:
    """The tensors of a GGUF file under the names that the checkpoint has for them.

    Parameters
    ----------
    file : GgufFile
    names : dict of str to str
        GGUF's name of each.
    heads : dict of str to int
        In how many heads the rows of some are reordered.
    cuts : dict of str to slice, optional
        Which rows of GGUF's tensor some are.
    experts : dict of str to int, optional
        Whose matrix, or bias, of a tensor of all experts some are.
    """

    def __init__(
        self,
        file: GgufFile,
        names: Mapping[str, str],
        heads: Mapping[str, int],
        cuts: Mapping[str, slice] | None = None,
        experts: Mapping[str, int] | None = None,
    ) -> None:
        self.path = file.path
        self._file, self._heads, self._cuts, self._experts = file, heads, cuts or {}, experts or {}
        self._names = {name: theirs for name, theirs in names.items() if theirs in file.tensors}
        for theirs in self._names.values():
            file.check_readable(theirs)

    def names(self) -> frozenset[str]:
        """Return the names of the tensors of this file."""
        return frozenset(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        shape = self._file.tensors[self._names[name]].shape
        if name in self._experts:
            if len(shape) != (2 if name.endswith(".bias") else 3) or self._experts[name] >= shape[0]:
                raise CheckpointError(f"{self.path}: {self._names[name]} does not hold that many experts")
            return shape[1:]
        rows, *others = shape
        cut = self._cuts.get(name, slice(None))
        # A matrix of one row may be a vector there.
        return (1, rows) if self._is_row(name) else (len(range(rows)[cut]), *others)

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        theirs, first = self._names[name], self._first(name)
        if self._is_row(name):
            return self._file.read(theirs, 0, self.shape(name)[1])[None][start:stop]
        if name in self._experts and len(self.shape(name)) == 1:
            expert = self._experts[name]
            return self._file.read(theirs, expert, expert + 1)[0, start:stop]
        if name not in self._heads:
            return self._file.read(theirs, first + start, first + stop)
        return self._file.read(theirs, first, first + self.shape(name)[0])[self._order(name)[start:stop]]

    def kind(self, name: str) -> str:
        """Return the name of a tensor's type."""
        return self._file.kind(self._names[name])

    def form(self, name: str) -> Form | None:
        """Return how a tensor's codes can be kept."""
        return self._file.form(self._names[name])

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form, as codes."""
        theirs, first = self._names[name], self._first(name)
        if name not in self._heads:
            return self._file.read_codes(theirs, first + start, first + stop)
        return self._file.read_codes(theirs, first, first + self.shape(name)[0]).rows(self._order(name)[start:stop])

    def _first(self, name: str) -> int:
        """Return at which row of GGUF's tensor one begins."""
        if name in self._experts:
            return self._experts[name] * self.shape(name)[0]
        return self._cuts[name].start if name in self._cuts else 0

    def _is_row(self, name: str) -> bool:
        theirs = self._names[name]
        return theirs.endswith("_inp_shexp.weight") and len(self._file.tensors[theirs].shape) == 1

    def _order(self, name: str) -> NDArray[np.intp]:
        return halves_order(self.shape(name)[0], self._heads[name])


def halves_order(rows: int, heads: int) -> NDArray[np.intp]:
    """Return which row each is: channel i of a head is followed by i + d/2 there, by i + 1 here."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def tensor_names(config: ModelConfig, family: GgufFamily) -> dict[str, str]:
    """Return what files of a family call each tensor that a checkpoint must have, its weights and biases."""
    names: dict[str, str] = {}

    def parts_of(has_bias: bool) -> Sequence[str]:
        return ("weight", "bias") if has_bias else ("weight",)

    for linear in linears_of_file(config):
        for shard in range(linear.shards):
            place = "" if linear.layers is None else f"blk.{linear.layer_of(shard)}."
            for name, theirs in zip(linear.names(shard), LINEARS[linear.name][len(linear.sources)]):
                names |= {f"{name}.{part}": f"{place}{theirs}.{part}" for part in parts_of(linear.bias)}
    known = family.norm_names(config)
    for norm in norms(config):
        for layer, source in zip(norm.at or range(norm.layers or 1), norm.sources, strict=True):
            place = "" if norm.layers is None else f"blk.{layer}."
            for part in parts_of(norm.bias):
                # A norm that attention and MLP share has the first one's name.
                names.setdefault(f"{source}.{part}", f"{place}{known[norm.name]}.{part}")
    for table in tables(config):
        names[f"{table.source}.weight"] = f"{TABLES[table.name]}.weight"
    return names


def linears_of_file(config: ModelConfig) -> list[Linear]:
    """List a model's linears by the tensors that files have: gates, and what they let through, apart."""
    return [
        replace(
            linear, sources=tuple(f"{linear.sources[0]}.{half}" for half in HALVES), rows=(linear.rows[0] // 2,) * 2
        )
        if is_in_halves(linear)
        else linear
        for linear in linears(config)
    ]


def is_in_halves(linear: Linear) -> bool:
    """Say whether a file has two tensors for one of the checkpoint."""
    return linear.name == "expert_gate_up_proj" and len(linear.sources) == 1


def join_halves(files: dict[str, TensorFile], folder: Path, config: ModelConfig) -> None:
    """Add the tensors that a checkpoint has for two of a file."""
    tensors = Tensors(folder, dict(files))
    for linear in linears(config):
        if is_in_halves(linear):
            for shard in range(linear.shards):
                (name,) = linear.names(shard)
                for part in ("weight", "bias") if linear.bias else ("weight",):
                    halves = [f"{name}.{half}.{part}" for half in HALVES]
                    if halves[0] in files:
                        files[f"{name}.{part}"] = JoinedTensor(tensors, halves)


def fused_cuts(config: ModelConfig) -> dict[str, tuple[str, slice]]:
    """Return in which rows of one tensor queries, keys and values stand, where a file has them fused, by their names.

    Files of Phi-2 do that which are older than the checkpoint's present form.
    """
    found = {}
    for linear in linears(config):
        if linear.name == "qkv_proj":
            for source, rows, stop in zip(linear.sources, linear.rows, accumulate(linear.rows)):
                for layer in range(config.num_hidden_layers):
                    for part in ("weight", "bias") if linear.bias else ("weight",):
                        cut = f"blk.{layer}.attn_qkv.{part}", slice(stop - rows, stop)
                        found[f"{source.format(layer)}.{part}"] = cut
    return found


def expert_numbers(config: ModelConfig) -> dict[str, int]:
    """Return which expert's each of the weights and biases is that stand in a tensor of all experts."""
    return {
        f"{name}.{part}": shard % linear.experts
        for linear in linears_of_file(config)
        if linear.experts
        for shard in range(linear.shards)
        for name in linear.names(shard)
        for part in ("weight", "bias")
    }


def rotated_heads(name: str, config: ModelConfig) -> int:
    """Return in how many heads a tensor's rows are rotated, by its name in GGUF; 0 for all but queries and keys."""
    kind = name.split(".")[-2]
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind, 0)


def open_gguf_tensors(folder: Path, file: Path, config: ModelConfig) -> Tensors:
    """Open the tensors of a GGUF file, by the checkpoint's names.

    Raises
    ------
    CheckpointError
        If the file is damaged, or the rows of a tensor do not make whole heads.
    """
    files = open_gguf(file)
    family = GGUF_FAMILIES[check_architecture(files[0].metadata, file)]
    names = tensor_names(config, family)
    cuts: dict[str, slice] = {}
    existing = {tensor for each in files for tensor in each.tensors}
    if "blk.0.attn_qkv.weight" in existing and "blk.0.attn_q.weight" in names.values():
        for name, (fused, cut) in fused_cuts(config).items():
            names[name], cuts[name] = fused, cut
    heads: dict[str, int] = {}
    if family.neighbours:
        heads = {name: count for name, theirs in names.items() if (count := rotated_heads(theirs, config))}
    experts = expert_numbers(config)
    parts = [GgufTensors(each, names, heads, cuts, experts) for each in files]
    found: dict[str, TensorFile] = {name: part for part in parts for name in part.names()}
    join_halves(found, folder, config)
    for name, count in heads.items():
        if name in found and found[name].shape(name)[0] % (2 * count):
            raise CheckpointError(f"{file}: {name} has rows that do not make {count} heads: download the file again")
    return adjusted(Tensors(folder, found), config, family.done)
