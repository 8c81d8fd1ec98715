"""Checkpoints of small drafters for the variants of Gemma 4."""

import json

import families
import gguf_files
import numpy as np
from safetensors.numpy import save_file
from variants.common import Variant

from tinychat.models.architectures import linears, norms, parse_config
from tinychat.models.drafter import ORDERING
from tinychat.models.tensors import whole_and_part

CLUSTERS, USED = 47, 5  # of 11 ids each
VARIANTS = ("gemma4", "gemma4-large")
# Of a variant's file, those of its layers that a drafter has to share.
SHARED = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_global_key_value_heads",
    "attention_k_eq_v",
    "head_dim",
    "global_head_dim",
    "sliding_window",
    "vocab_size",
    "max_position_embeddings",
    "hidden_activation",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)


def config_of(name, ordered=False, **changed):
    """Return the ``config.json`` of a drafter for a variant; changed : values of its text model."""
    larger = families.BY_NAME[name].config
    text = {key: larger[key] for key in SHARED if key in larger} | {
        "model_type": "gemma4_text",
        "hidden_size": 56,
        "intermediate_size": 100,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "tie_word_embeddings": True,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": larger["hidden_size"],
        "use_ordered_embeddings": ordered,
        "num_centroids": CLUSTERS,
        "centroid_intermediate_top_k": USED,
        "tie_word_embeddings": True,
        "text_config": text | changed,
    }


def draw(raw, seed=7):
    """Draw the tensors of a drafter by the names of `models.tensors`, float32, and the ids of its clusters."""
    config, random, found = parse_config(raw, "drafter"), np.random.default_rng(seed), {}
    V, D = config.vocab_size, config.hidden_size
    for linear in linears(config):
        if linear.name != "lm_head":
            for shard in range(linear.shards):
                for name, rows in zip(linear.names(shard), linear.rows):
                    spread = 2.0 if "q_proj" in name else 1.2
                    found[f"{name}.weight"] = random.normal(0, spread / np.sqrt(linear.columns), (rows, linear.columns))
    for norm in norms(config):
        for source in norm.sources:
            found[f"{source}.weight"] = random.uniform(0.5, 1.5, norm.size)
    found["model.embed_tokens.weight"] = random.normal(0, 1.0, (V, D))
    found = {name: values.astype(np.float32) for name, values in found.items()}
    if config.drafter.clusters:
        order = random.permutation(V)
        found[f"masked_embedding.{ORDERING}.weight"] = order
        for number, ids in enumerate(order.reshape(CLUSTERS, -1)):
            found[f"masked_embedding.clusters.{number}.weight"] = found["model.embed_tokens.weight"][ids]
    return found


def with_whole_tensors(weights):
    """Return weights with the tensors of a checkpoint, all of whose names end in ``.weight``."""
    parts, found = {}, {}
    for name, values in weights.items():
        whole, part = whole_and_part(name)
        if part:
            parts.setdefault(whole, {})[part.first] = values
        elif ".clusters." not in name:
            found[name] = values
    return found | {
        name: np.concatenate([columns[first] for first in sorted(columns)], axis=1) for name, columns in parts.items()
    }


def stored(weights):
    """Return weights as a checkpoint has them."""
    plain = (f"{ORDERING}.weight", "layer_scalar.weight")
    return {
        name.removesuffix(".weight") if name.endswith(plain) else name: values
        for name, values in with_whole_tensors(weights).items()
    }


def write_gguf(path, raw, weights, **options):
    """Write a drafter as llama.cpp's converter does, and its clusters, which that leaves out, as llama.cpp calls them.

    options : of `gguf_files.write_variant`.
    """
    whole, clusters = with_whole_tensors(weights), {}
    if raw["use_ordered_embeddings"]:
        clusters["masked_embd_centroids"] = whole.pop("masked_embedding.centroids.weight")
        clusters["masked_embd_ordering"] = whole.pop(f"masked_embedding.{ORDERING}.weight").astype(np.int32)
    variant = Variant(path.stem, raw["text_config"] | raw)
    return gguf_files.write_variant(variant, path, weights=whole, **clusters, **options)


def write_checkpoint(folder, raw, weights):
    """Write a drafter's checkpoint; return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(stored(weights), folder / "model.safetensors")
    families.write_tokenizer(folder, raw["text_config"]["vocab_size"])
    return folder
