"""Checkpoints of small EAGLE-3 drafters for some variants, in the forms that are published."""

import json

import families
import numpy as np
from safetensors.numpy import save_file

from tinychat.models.architectures import linears, norms, parse_config
from tinychat.models.tensors import whole_and_part

FREQUENT = 190  # tokens of its output matrix


def config_of(name, **changed):
    """Return the ``config.json`` of EAGLE-3 for a variant, as its authors wrote such."""
    larger = families.BY_NAME[name].config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": larger["hidden_size"],
        "intermediate_size": 140,
        "num_hidden_layers": 1,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "vocab_size": larger["vocab_size"],
        "draft_vocab_size": FREQUENT,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    } | changed


def as_speculator(raw, kind="llama"):
    """Return a ``config.json`` as vLLM's speculators write it."""
    outside = ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    layer = {key: value for key, value in raw.items() if key not in (*outside, "architectures")}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy"},
        "transformer_layer_config": layer | {"model_type": kind},
        "tie_word_embeddings": False,
        **{key: raw[key] for key in outside if key in raw},
    }


def draw(raw, seed=7):
    """Draw the tensors of EAGLE-3, float32, and the ids of its output matrix, by their names in a checkpoint."""
    config, random, found = parse_config(raw, "drafter"), np.random.default_rng(seed), {}
    for linear in linears(config):
        for name, rows in zip(linear.names(0), linear.rows):
            whole, part = whole_and_part(name)
            columns = part.whole if part else linear.columns
            found[f"{whole}.weight"] = random.normal(0, 1.2 / np.sqrt(columns), (rows, columns)).astype(np.float32)
    for norm in norms(config):
        for source in norm.sources:
            found[f"{source}.weight"] = random.uniform(0.5, 1.5, norm.size).astype(np.float32)
    if found.pop("d2t.weight", None) is not None:
        ids = np.sort(random.choice(config.vocab_size, config.eagle.draft_vocab_size, replace=False))
        found["d2t"] = ids - np.arange(len(ids))
        found["t2d"] = np.isin(np.arange(config.vocab_size), ids)
    return found


def write_checkpoint(folder, raw, weights, others_names=False):
    """Write a checkpoint of EAGLE-3, which has no tokenizer; return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    if others_names:
        weights = {name.replace("midlayer.", "layers.0."): values for name, values in weights.items()}
    save_file(weights, folder / "model.safetensors")
    return folder
