"""The tensors of a GGUF file by the names, and in the shapes and orders, that a Hugging Face checkpoint has.

llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py) renames tensors, and for some architectures
reorders the rows of queries and keys, since they are rotated in neighbouring pairs there: both is undone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import AdjustedTensor, adjusted
from tinychat.checkpoint.gguf_checkpoint import check_architecture
from tinychat.checkpoint.gguf_delta_net import BOTH_GATES, gates_of, restored
from tinychat.checkpoint.gguf_delta_net import GATES as DELTA_GATES
from tinychat.checkpoint.gguf_families import FAMILIES, NORMS, GgufFamily
from tinychat.checkpoint.gguf_file import GgufFile, open_gguf
from tinychat.checkpoint.gguf_mamba import restored as restored_scan
from tinychat.checkpoint.rescaled import RescaledTensor
from tinychat.checkpoint.stacked import unstacked
from tinychat.checkpoint.tensor_part import JoinedTensor, Numbers, TensorPart
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.errors import CheckpointError
from tinychat.models.altup import LAUREL, STREAM_LINEARS
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.decoder import OTHER
from tinychat.models.delta_net import GATES
from tinychat.models.mamba import STEPS
from tinychat.models.selective import LOW
from tinychat.models.tensors import POSITIONS, PROJECTION, Linear, whole_and_part
from tinychat.models.varied_layers import LAYER_INPUTS

# GGUF's names of a linear's parts, by how many of them a family has as tensors of their own.
LINEARS: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "embed_tokens": {1: ("token_embd",)},
    # Of latents; queries that have none are called otherwise.
    "qkv_proj": {
        1: ("attn_qkv",),
        2: ("attn_q_a", "attn_kv_a_mqa"),
        3: ("attn_q", "attn_k", "attn_v"),
        4: ("attn_q", "attn_gate", "attn_k", "attn_v"),
    },
    "q_b_proj": {1: ("attn_q_b",)},
    "k_b_proj": {1: ("attn_k_b",)},
    "v_b_proj": {1: ("attn_v_b",)},
    "o_proj": {1: ("attn_output",)},
    "gate_up_proj": {1: ("ffn_up",), 2: ("ffn_gate", "ffn_up")},
    "up_proj": {1: ("ffn_up",)},
    "down_proj": {1: ("ffn_down",)},
    "router": {1: ("ffn_gate_inp",), 2: ("ffn_gate_inp", "ffn_gate_inp_shexp")},
    "expert_gate_up_proj": {2: ("ffn_gate_exps", "ffn_up_exps")},
    "expert_up_proj": {1: ("ffn_up_exps",)},
    "expert_down_proj": {1: ("ffn_down_exps",)},
    "experts_in_proj": {1: ("ffn_latent_down",)},
    "experts_out_proj": {1: ("ffn_latent_up",)},
    "shared_gate_up_proj": {2: ("ffn_gate_shexp", "ffn_up_shexp")},
    "shared_up_proj": {1: ("ffn_up_shexp",)},
    "shared_down_proj": {1: ("ffn_down_shexp",)},
    "query_proj": {1: ("attn_q",)},
    LAYER_INPUTS: {1: ("per_layer_token_embd",)},
    "inputs_proj": {1: ("per_layer_model_proj",)},
    "input_gate": {1: ("inp_gate",)},
    "input_proj": {1: ("proj",)},
    **dict(zip(LAUREL, ({1: ("laurel_l",)}, {1: ("laurel_r",)}))),
    # Each is one of three in a tensor.
    "streams_proj": {3: ("altup_proj",) * 3},
    **{name: {1: ("altup_unembd_proj",)} for name in STREAM_LINEARS},
    "conv_in_proj": {1: ("shortconv.in_proj",)},
    "conv_out_proj": {1: ("shortconv.out_proj",)},
    "delta_in_proj": {2: ("attn_qkv", "attn_gate")},
    GATES: {2: ("ssm_beta", "ssm_alpha")},
    "delta_out_proj": {1: ("ssm_out",)},
    "mamba_in_proj": {count: ("ssm_in",) * count for count in (1, 2, 4)},
    LOW: {1: ("ssm_x",)},
    STEPS: {1: ("ssm_in",)},
    "mamba_out_proj": {1: ("ssm_out",)},
    "lm_head": {1: ("output",)},
}
# Whose names have their own endings.
_VECTORS = {
    "delta_A_log": "ssm_a",
    "delta_dt_bias": "ssm_dt.bias",
    "mamba_A_log": "ssm_a",
    "mamba_decays": "ssm_a",
    "mamba_D": "ssm_d",
    "mamba_dt_bias": "ssm_dt.bias",
    "mamba_taps_bias": "ssm_conv1d.bias",
    "router_bias": "exp_probs_b.bias",
    "router_norm": "ffn_gate_inp.scale",
    "expert_scale": "ffn_down_exps.scale",
}
PARTS = ("weight", "bias")
TABLES = {POSITIONS: "position_embd", PROJECTION: "output"}
# Halves of the rows of a linear that is one tensor in a checkpoint and two in a file.
HALVES = ("gate", "up")
# Tensors of all experts that may be one.
GATES_AND_INPUTS, BOTH_INPUTS = ("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"
_EXPERT = re.compile(r"\.(?:experts|[kv]_b_proj|altup_(?:unembed_)?projections)\.(\d+)\.")


def expert_of(tensor: Tensor, name: str, expert: int, half: int | None = None) -> TensorPart:
    """Return the matrix, or bias, of one expert or head in a tensor of all; `half` of its rows if two share one."""
    experts, *shape = tensor.shape
    if len(shape) != (1 if name.endswith(".bias") else 2) or expert >= experts:
        raise CheckpointError(f"{tensor.path}: {name} does not hold that many experts or heads")
    first = expert * (shape[0] if len(shape) == 2 else 1)
    if half is not None:
        shape[0] //= 2
    return TensorPart(tensor, first + (half or 0) * shape[0], tuple(shape))


def halves_order(rows: int, heads: int) -> NDArray[np.intp]:
    """Return the index there of each row: channel i of a head is followed by i + d/2 there, by i + 1 here."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def tensor_names(config: ModelConfig, family: GgufFamily) -> dict[str, str]:
    """Return the names that files of a family have for a checkpoint's tensors, weights and biases."""
    names: dict[str, str] = {}

    for linear in linears_of_file(config):
        for shard in range(linear.shards):
            prefix = "" if linear.layers is None else f"blk.{linear.layer_of(shard)}."
            kind = _without_sizes(linear.name)
            own = family.linears.get(kind) or LINEARS[kind][len(linear.sources)]
            for name, theirs in zip(linear.names(shard), own):
                stored = _with_kinds(name, names)
                for part in PARTS[: 1 + linear.bias]:
                    # Keys that are values too have the first one's name, and so have the parts of a tensor.
                    names.setdefault(whole_and_part(f"{stored}.{part}")[0], f"{prefix}{theirs}.{part}")
    known = {**NORMS, **family.norms, **(family.parallel_norms if config.separate_mlp_norm else {})}
    for norm in (each for each in norms(config) if each.name not in family.numbers):
        vector, kind = _VECTORS.get(norm.name), _without_sizes(norm.name)
        for layer, source in zip(norm.at or range(norm.layers or 1), norm.sources):
            prefix = "" if norm.layers is None else f"blk.{layer}."
            for part in PARTS[: 1 + norm.bias]:
                theirs = vector or f"{known[kind].replace('+', f'.{part}+')}.{part}"
                # A norm that attention and MLP share has the first one's name.
                sources = source.split("+") if "+" in theirs else [source]
                for one, name in zip(sources, theirs.split("+")):
                    names.setdefault(f"{one}.{part}", f"{prefix}{name}")
    for table in tables(config):
        names[f"{_with_kinds(table.source, names)}.weight"] = f"{TABLES[table.name]}.weight"
    return names


def _without_sizes(name: str) -> str:
    """Return the name that a linear or norm has in the other layers: files call those of all sizes alike."""
    return name.removeprefix(OTHER).removeprefix("wide_")


def _with_kinds(source: str, names: dict[str, str]) -> str:
    """Return the name of the first part of a sum, and note that of the second: the vectors of kinds of text."""
    name, _, kinds = source.partition("+")[0].partition("^")
    if kinds:
        names[f"{whole_and_part(kinds)[0]}.weight"] = "token_types.weight"
    return name


def linears_of_file(config: ModelConfig) -> list[Linear]:
    """List a model's linears by the tensors that files have: gates, and what they let through, apart."""

    def apart(linear: Linear) -> Linear:
        (source,), (rows,) = linear.sources, linear.rows
        return replace(linear, sources=tuple(f"{source}.{half}" for half in HALVES), rows=(rows // 2, rows // 2))

    return [apart(linear) if is_joined(linear) else linear for linear in linears(config)]


def is_joined(linear: Linear) -> bool:
    """Return whether a file has two tensors for one of the checkpoint."""
    is_granite = linear.name == "gate_up_proj" and "shared_mlp" in linear.sources[0]
    return len(linear.sources) == 1 and (is_granite or linear.name in ("expert_gate_up_proj", "shared_gate_up_proj"))


def join_halves(found: dict[str, Tensor], config: ModelConfig) -> None:
    """Add the tensors that a checkpoint has for two of a file."""
    for linear in filter(is_joined, linears(config)):
        for shard in range(linear.shards):
            (name,) = linear.names(shard)
            for part in PARTS:
                halves = [f"{name}.{half}.{part}" for half in HALVES]
                if found.keys() >= {*halves}:
                    found[f"{name}.{part}"] = JoinedTensor(f"{name}.{part}", [found[half] for half in halves])


def listed_numbers(file: GgufFile, config: ModelConfig, family: GgufFamily) -> dict[str, Tensor]:
    """Return as tensors the numbers of layers that a file lists in its metadata."""
    found: dict[str, Tensor] = {}
    for norm in (each for each in norms(config) if each.name in family.numbers):
        key = family.numbers[norm.name]
        listed = np.asarray(file.metadata.get(key))
        if listed.dtype.kind != "f" or listed.shape != (len(norm.sources),):
            raise CheckpointError(f"{file.path}: {key} does not list a number for each layer: download the file again")
        found |= {f"{source}.weight": Numbers(file.path, listed[i : i + 1]) for i, source in enumerate(norm.sources)}
    return found


def fused_rows(config: ModelConfig) -> dict[str, slice]:
    """Return the rows of queries, keys and values, by GGUF's names, in the tensor that some files fuse them into.

    Files of Phi-2 have it that are older than the checkpoint's present form.
    """
    found = {}
    for linear in linears(config):
        if linear.name == "qkv_proj" and len(linear.rows) > 1:
            parts = zip(LINEARS["qkv_proj"][3], linear.rows, accumulate(linear.rows))
            found = {part: slice(stop - rows, stop) for part, rows, stop in parts}
    return found


def rotated_heads(name: str, config: ModelConfig) -> int:
    """Return in how many heads a tensor's rows are rotated, by its name in GGUF; 0 for all but queries and keys."""
    kind = name.split(".")[-2]
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind, 0)


def _is_of_state(theirs: str, config: ModelConfig) -> bool:
    """Return whether a tensor, by its name in GGUF, is of a layer with a state."""
    block, _, rest = theirs.removeprefix("blk.").partition(".")
    return bool(rest) and block.isdigit() and int(block) in config.state_layers


class _StoredTensors:
    """The tensors of a file, found by the names that `tensor_names` gives them."""

    def __init__(self, files: Sequence[GgufFile], config: ModelConfig, family: GgufFamily) -> None:
        self.by_name = {name: tensor for file in files for name, tensor in file.tensors.items()}
        # Gemma 4 has scales of experts anyway, with which these are multiplied.
        has_own = any(norm.name == "expert_scale" for norm in norms(config))
        self._own_scale = _VECTORS["expert_scale"] if has_own else None
        self._config, self._family = config, family
        # Of Gated DeltaNet, it is another tensor.
        is_fused = "blk.0.attn_qkv.weight" in self.by_name and config.delta_net is None
        self._fused = fused_rows(config) if is_fused else {}
        self._has_both_gates = any(f".{BOTH_GATES}." in name for name in self.by_name)

    def find(self, name: str, theirs: str) -> Tensor | None:
        """Return a tensor as the checkpoint has it, where it is called `name`; None where the file has none."""
        *block, kind, part = theirs.split(".")
        stored_kind = self._stored_kind(theirs, kind)
        whole = ".".join([*block, stored_kind, part])
        # Falcon-H1's norms before MLPs have no ending.
        stored = whole if whole in self.by_name else whole.removesuffix(".weight")
        if stored not in self.by_name:
            return None
        self.by_name[stored].check_readable()
        tensor = self.scaled(stored)
        gate = stored.replace(".ffn_up.", ".ffn_gate.")
        if ".gated_layers." in name and gate in self.by_name:
            # Older files of Jina's BERT have them apart.
            self.by_name[gate].check_readable()
            return JoinedTensor(name, [self.scaled(gate), tensor])
        if expert := _EXPERT.search(name):
            half = GATES_AND_INPUTS.index(kind) if stored_kind == BOTH_INPUTS else None
            return expert_of(tensor, stored, int(expert[1]), half)
        if kind in self._fused:
            first, stop, _ = self._fused[kind].indices(tensor.shape[0])
            return TensorPart(tensor, first, (stop - first, *tensor.shape[1:]))
        if kind == "ffn_gate_inp_shexp" and len(tensor.shape) == 1:
            # A matrix of one row may be a vector there.
            return TensorPart(tensor, 0, (1, *tensor.shape))
        if self._family.neighbours and (heads := rotated_heads(theirs, self._config)):
            if tensor.shape[0] % (2 * heads):
                what = f"the rows of {name} make no {heads} heads"
                raise CheckpointError(f"{tensor.path}: {what}: download the file again")
            return AdjustedTensor(tensor, order=halves_order(tensor.shape[0], heads))
        return self._restored(tensor, stored, kind)

    def scaled(self, stored: str) -> Tensor:
        """Return a tensor times the scale of the whole, which NVFP4 has in another tensor."""
        tensor, scale = self.by_name[stored], f"{stored.removesuffix('.weight')}.scale"
        is_own = self._own_scale is not None and scale.endswith(self._own_scale)
        if tensor.kind != "NVFP4" or scale not in self.by_name or is_own:
            return tensor
        return RescaledTensor(tensor, self.by_name[scale], scale)

    def _stored_kind(self, theirs: str, kind: str) -> str:
        """Return the kind that has these tensors in the file: some are a part of another one."""
        if kind in self._fused:
            return "attn_qkv"
        if self._has_both_gates and kind in DELTA_GATES:
            return BOTH_GATES
        if theirs in self.by_name:
            return kind
        # Queries without latents are called otherwise.
        return BOTH_INPUTS if kind in GATES_AND_INPUTS else "attn_q" if kind == "attn_q_a" else kind

    def _restored(self, tensor: Tensor, stored: str, kind: str) -> Tensor:
        """Return a tensor of a layer with a state as the checkpoint has it, others as they are."""
        net = self._config.delta_net
        if net is not None and _is_of_state(stored, self._config):
            if self._has_both_gates and kind in DELTA_GATES:
                return gates_of(tensor, kind, net)
            return restored(tensor, stored, net, not self._has_both_gates)
        return restored_scan(tensor, stored) if self._config.mamba or self._config.selective else tensor


def open_gguf_tensors(folder: Path, file: Path, config: ModelConfig) -> Tensors:
    """Open the tensors of a GGUF file, by the checkpoint's names."""
    files = open_gguf(file)
    architecture = check_architecture(files[0].metadata, file)
    family = FAMILIES[architecture]
    in_sections = f"{architecture}.rope.dimension_sections" in files[0].metadata
    stored = _StoredTensors(files, config, family)
    names = tensor_names(config, family).items()
    found = {name: tensor for name, theirs in names if (tensor := stored.find(name, theirs)) is not None}
    join_halves(found, config)
    found |= listed_numbers(files[0], config, family)
    for layer in range(config.num_hidden_layers if config.latents else 0):
        # Older files have one tensor for the matrices of heads, as checkpoints have.
        if whole := stored.by_name.get(name := f"blk.{layer}.attn_kv_b.weight"):
            whole.check_readable()
            found.setdefault(f"model.layers.{layer}.self_attn.kv_b_proj.weight", stored.scaled(name))
    done = family.done | (family.done_in_sections if in_sections else frozenset())
    return adjusted(unstacked(Tensors(folder, found), config), config, done)
