"""A GGUF file as a Hugging Face checkpoint: its configuration, its tensors by their names there, its text files.

llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py) renames tensors, and for some architectures
reorders the rows of queries and keys, since they are rotated in neighbouring pairs there: both is undone.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import AdjustedTensor, adjusted
from tinychat.checkpoint.gguf import ENDING, first_parts
from tinychat.checkpoint.gguf_delta_net import BOTH_GATES, VECTORS, gates_of, restored
from tinychat.checkpoint.gguf_delta_net import GATES as DELTA_GATES
from tinychat.checkpoint.gguf_families import FAMILIES as GGUF_FAMILIES
from tinychat.checkpoint.gguf_families import NORMS, GgufFamily
from tinychat.checkpoint.gguf_file import GgufFile, GgufTensor, open_gguf
from tinychat.checkpoint.gguf_mamba import VECTORS as MAMBA_VECTORS
from tinychat.checkpoint.gguf_mamba import restored as restored_scan
from tinychat.checkpoint.gguf_tokenizer import tokenizer_files
from tinychat.checkpoint.gguf_values import GgufValues, positive, present
from tinychat.checkpoint.stacked import unstacked
from tinychat.checkpoint.tensor_part import JoinedTensor, Numbers, TensorPart
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.errors import CheckpointError
from tinychat.json_file import one_line
from tinychat.models.altup import LAUREL, STREAM_LINEARS
from tinychat.models.architectures import family_of, linears, norms, parse_config, tables, unsupported
from tinychat.models.config import ModelConfig
from tinychat.models.delta_net import GATES
from tinychat.models.embedder import embedder_files
from tinychat.models.mamba import STEPS
from tinychat.models.tensors import Linear, whole_and_part
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
    "other_qkv_proj": {3: ("attn_q", "attn_k", "attn_v")},
    "other_o_proj": {1: ("attn_output",)},
    "wide_qkv_proj": {3: ("attn_q", "attn_k", "attn_v")},
    "wide_query_proj": {1: ("attn_q",)},
    "wide_o_proj": {1: ("attn_output",)},
    "wide_gate_up_proj": {2: ("ffn_gate", "ffn_up")},
    "wide_down_proj": {1: ("ffn_down",)},
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
    "mamba_in_proj": {count: ("ssm_in",) * count for count in (2, 4)},
    STEPS: {1: ("ssm_in",)},
    "mamba_out_proj": {1: ("ssm_out",)},
    "lm_head": {1: ("output",)},
}
# GGUF's numbers of poolings (llama.cpp, include/llama.h, llama_pooling_type).
POOLINGS: Mapping[int, str] = {1: "mean", 3: "last"}
# Whose names have their own endings.
_VECTORS = {
    **VECTORS,
    **MAMBA_VECTORS,
    "router_bias": "exp_probs_b.bias",
    "router_norm": "ffn_gate_inp.scale",
    "expert_scale": "ffn_down_exps.scale",
}
TABLES = {"embed_positions": "position_embd"}
# Of channels that are rotated in a head.
_MAX_PAIRS = 1 << 16
# Halves of the rows of a linear that is one tensor in a checkpoint and two in a file.
HALVES = ("gate", "up")
# Tensors of all experts that may be one.
GATES_AND_INPUTS = ("ffn_gate_exps", "ffn_up_exps")
_EXPERT = re.compile(r"\.(?:experts|[kv]_b_proj|altup_(?:unembed_)?projections)\.(\d+)\.")


@contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """Yield a checkpoint folder of a GGUF file: its text files, and links to its tensors."""
    files = open_gguf(file)
    with TemporaryDirectory(prefix="tinychat-gguf-") as folder:
        target = Path(folder) / file.stem
        target.mkdir()
        for name, content in text_files(files).items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
        for part in files:
            # Some programs give their files no ending.
            name = part.path.name if part.path.suffix.lower() == ENDING else f"{part.path.name}{ENDING}"
            (target / name).symlink_to(part.path.resolve())
        yield target


def gguf_in(folder: Path) -> Path:
    """Return the GGUF file of a folder that has one, the first part of a split one."""
    models = first_parts(sorted(path for path in folder.iterdir() if path.suffix.lower() == ENDING))
    if len(models) > 1:
        names = ", ".join(one_line(path.name, 60) for path in models[:4])
        raise CheckpointError(f"{folder} holds several GGUF files ({names}): give the path of one")
    if not models:
        raise CheckpointError(f"{folder} holds no GGUF file of a language model: give the path of one")
    return models[0]


def text_files(files: Sequence[GgufFile]) -> dict[str, bytes]:
    """Return configuration, tokenizer and template as the files of a checkpoint folder; errors as of `unpacked`."""
    metadata = files[0].metadata
    config = config_of(files)
    generation, tokenizer = tokenizer_files(metadata, str(files[0].path))
    config |= {key: generation[key] for key in ("bos_token_id", "eos_token_id") if key in generation}
    texts = {"config.json": config, "generation_config.json": generation}
    contents = {name: json.dumps(value, default=repr).encode() for name, value in texts.items()}
    # Checked here, where the file's name is known: values are still as the file has them.
    parse_config(json.loads(contents["config.json"]), f"{files[0].path} (as config.json)")
    return contents | tokenizer | _embedder_files(metadata)


def _embedder_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of an embedding model; none for a file that names no pooling, or one that is not supported."""
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    pooling = POOLINGS.get(kind) if type(kind) is int else None
    return {} if pooling is None else {path: text.encode() for path, text in embedder_files(pooling).items()}


def config_of(files: Sequence[GgufFile]) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    metadata, source = files[0].metadata, files[0].path
    name = check_architecture(metadata, source)
    shapes = {tensor: found.shape for file in files for tensor, found in file.tensors.items()}
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{source} has no tensor token_embd.weight: it does not hold a language model")
    known, values = GGUF_FAMILIES[name], GgufValues(metadata, name, shapes, str(source))
    architecture = known.architecture if isinstance(known.architecture, str) else known.architecture(values)
    family = family_of(architecture)
    values.config |= values.common() | {"vocab_size": shapes["token_embd.weight"][0]}
    values.config |= _rope(files, values, family.partial_rotary)
    values.config |= known.extra(values)
    named = {family.names.get(key, key): value for key, value in values.config.items()}
    return {"architectures": [architecture]} | named


def check_architecture(metadata: Mapping[str, Any], source: Path) -> str:
    """Return the architecture that a file's metadata name."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        raise unsupported(str(source), f"architecture {one_line(str(name), 40)!r}")
    experts = GgufValues(metadata, name, {}, str(source)).get("expert_count")
    if experts and not GGUF_FAMILIES[name].experts:
        raise unsupported(str(source), f"a mixture of experts of {name}")
    return name


def _rope(files: Sequence[GgufFile], values: GgufValues, partial_rotary: bool) -> dict[str, Any]:
    """Return the configuration's keys of the rotary embedding.

    llama.cpp stores the divisors of frequencies as tensors, for Llama 3.1 as for Phi-3: LongRoPE has them as keys.
    """
    keys = ("type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast", "yarn_beta_slow")
    scaling = {key: values.get(f"rope.scaling.{key}") for key in keys}
    trained = scaling["original_context_length"] or values.config.get("max_position_embeddings")
    found: dict[str, Any] = {}
    head_dim = positive(values.config.get("head_dim"), 0)
    rotary_dim = values.number("rope.dimension_count", 0)
    if head_dim and rotary_dim and (partial_rotary or rotary_dim != head_dim):
        found["partial_rotary_factor"] = rotary_dim / head_dim
    if (both := _vector(files, "rope_freqs.weight")) is not None:
        section = {"short_factor": both, "long_factor": both, "attention_factor": 1.0}
        return found | {"rope_scaling": {"rope_type": "longrope", **section}}
    short, long = (_vector(files, f"rope_factors_{kind}.weight") for kind in ("short", "long"))
    if short is not None and long is not None:
        scaled: dict[str, Any] = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        scaled |= {"attention_factor": scaling["attn_factor"]} if scaling["attn_factor"] else {}
        scaled |= {"original_max_position_embeddings": trained}
        return found | {"rope_scaling": scaled, "original_max_position_embeddings": trained}
    if scaling["type"] in (None, "none"):
        # Not the scaling that some families have where a `config.json` names none.
        return found | {"rope_parameters": {"rope_type": "default"}}
    section = {"rope_type": scaling["type"], "factor": scaling["factor"]}
    if scaling["type"] == "yarn":
        section |= {"original_max_position_embeddings": trained}
        section |= present({"beta_fast": scaling["yarn_beta_fast"], "beta_slow": scaling["yarn_beta_slow"]})
    return found | {"rope_scaling": section}


def _vector(files: Sequence[GgufFile], name: str) -> list[float] | None:
    """Return the numbers of a tensor of one axis; None where there is none of this name."""
    tensor = next((file.tensors[name] for file in files if name in file.tensors), None)
    if tensor is None:
        return None
    tensor.check_readable()
    if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_PAIRS:
        raise CheckpointError(f"{tensor.path}: tensor {name} has shape {tensor.shape}: download the file again")
    numbers: list[float] = tensor.read(0, tensor.shape[0]).astype(np.float64).tolist()
    return numbers


def expert_of(tensor: GgufTensor, name: str, expert: int, half: int | None = None) -> TensorPart:
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

    def parts_of(has_bias: bool) -> Sequence[str]:
        return ("weight", "bias") if has_bias else ("weight",)

    for linear in linears_of_file(config):
        for shard in range(linear.shards):
            prefix = "" if linear.layers is None else f"blk.{linear.layer_of(shard)}."
            own = family.linears.get(linear.name) or LINEARS[linear.name][len(linear.sources)]
            for name, theirs in zip(linear.names(shard), own):
                for part in parts_of(linear.bias):
                    # Keys that are values too have the first one's name, and so have the parts of a tensor.
                    names.setdefault(whole_and_part(f"{name}.{part}")[0], f"{prefix}{theirs}.{part}")
    known = {**NORMS, **family.norms, **(family.parallel_norms if config.separate_mlp_norm else {})}
    for norm in (each for each in norms(config) if each.name not in family.numbers):
        for layer, source in zip(norm.at or range(norm.layers or 1), norm.sources):
            prefix = "" if norm.layers is None else f"blk.{layer}."
            for part in parts_of(norm.bias):
                theirs = _VECTORS.get(norm.name) or f"{known[norm.name].replace('+', f'.{part}+')}.{part}"
                # A norm that attention and MLP share has the first one's name.
                sources = source.split("+") if "+" in theirs else [source]
                for one, name in zip(sources, theirs.split("+")):
                    names.setdefault(f"{one}.{part}", f"{prefix}{name}")
    for table in tables(config):
        names[f"{table.source}.weight"] = f"{TABLES[table.name]}.weight"
    return names


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
            for part in ("weight", "bias"):
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


def open_gguf_tensors(folder: Path, file: Path, config: ModelConfig) -> Tensors:
    """Open the tensors of a GGUF file, by the checkpoint's names."""
    files = open_gguf(file)
    stored = {name: tensor for part in files for name, tensor in part.tensors.items()}
    family = GGUF_FAMILIES[check_architecture(files[0].metadata, file)]
    # Of Gated DeltaNet, it is another tensor.
    is_fused = "blk.0.attn_qkv.weight" in stored and config.delta_net is None
    fused = fused_rows(config) if is_fused else {}
    has_both_gates = any(f".{BOTH_GATES}." in name for name in stored)
    found: dict[str, Tensor] = {}
    for name, theirs in tensor_names(config, family).items():
        *block, kind, part = theirs.split(".")
        if kind in fused:
            theirs = ".".join([*block, "attn_qkv", part])
        if has_both_gates and kind in DELTA_GATES:
            theirs = ".".join([*block, BOTH_GATES, part])
        half = GATES_AND_INPUTS.index(kind) if kind in GATES_AND_INPUTS and theirs not in stored else None
        if half is not None:
            theirs = ".".join([*block, "ffn_gate_up_exps", part])
        if kind == "attn_q_a" and theirs not in stored:
            theirs = ".".join([*block, "attn_q", part])
        if theirs not in stored:
            # Falcon-H1's norms before MLPs have no ending.
            theirs = theirs.removesuffix(".weight")
        if theirs not in stored:
            continue
        tensor = stored[theirs]
        tensor.check_readable()
        found[name] = tensor
        if expert := _EXPERT.search(name):
            found[name] = expert_of(tensor, theirs, int(expert[1]), half)
        elif kind in fused:
            first, stop, _ = fused[kind].indices(tensor.shape[0])
            found[name] = TensorPart(tensor, first, (stop - first, *tensor.shape[1:]))
        elif kind == "ffn_gate_inp_shexp" and len(tensor.shape) == 1:
            # A matrix of one row may be a vector there.
            found[name] = TensorPart(tensor, 0, (1, *tensor.shape))
        elif family.neighbours and (heads := rotated_heads(theirs, config)):
            if tensor.shape[0] % (2 * heads):
                raise CheckpointError(f"{file}: the rows of {name} make no {heads} heads: download the file again")
            found[name] = AdjustedTensor(tensor, order=halves_order(tensor.shape[0], heads))
        elif config.delta_net is not None and _is_of_state(theirs, config):
            if has_both_gates and kind in DELTA_GATES:
                found[name] = gates_of(tensor, kind, config.delta_net)
            else:
                found[name] = restored(tensor, theirs, config.delta_net, not has_both_gates)
        elif config.mamba is not None:
            found[name] = restored_scan(tensor, theirs)
    join_halves(found, config)
    found |= listed_numbers(files[0], config, family)
    for layer in range(config.num_hidden_layers if config.latents else 0):
        # Older files have one tensor for the matrices of heads, as checkpoints have.
        if (whole := f"blk.{layer}.attn_kv_b.weight") in stored:
            stored[whole].check_readable()
            found.setdefault(f"model.layers.{layer}.self_attn.kv_b_proj.weight", stored[whole])
    return adjusted(unstacked(Tensors(folder, found), config), config, family.done)
