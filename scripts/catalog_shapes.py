"""The ``config.json`` of each model in the catalog, made of its shape, and models of fewer layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tinychat.models.shapes import config_of
from tinychat.store.catalog import CatalogEntry, Latent, Scan, Shape
from tinychat.store.estimates import disk_bytes

_NEMOTRON_LAYERS = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_STATES, _ATTENTION, _EXPERTS = "M*E"
_GEMMAS = {"Gemma3nForCausalLM": "gemma3n-e2b", "Gemma4ForCausalLM": "gemma4-e2b"}


def catalog_config(entry: CatalogEntry) -> dict[str, object]:
    """Return the ``config.json`` of a model; what its shape does not say is as its family has it by default."""
    shape, base = entry.shape, _GEMMAS.get(entry.architecture)
    return {
        "hidden_act": "silu",
        **(config_of(base) if base else {}),
        "architectures": [entry.architecture],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": entry.context,
        "original_max_position_embeddings": entry.context,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **_experts(shape),
        **_kinds_of_layers(entry),
        **(_delta_net(*shape.delta) if shape.delta else {}),
        **(_scan(shape.scan) if shape.scan else {}),
        **(_readers(shape) if shape.readers else {}),
        **(_first_mlp(shape) if shape.first_mlp else {}),
        **(_latent(shape, shape.latent, entry.context) if shape.latent else {}),
    }


def cut(entry: CatalogEntry, most_bytes: float) -> CatalogEntry:
    """Return the model with as many of its first layers as take so many bytes in int4."""
    whole, all_kinds = entry.shape, _layers(entry)
    while disk_bytes(entry) > most_bytes:
        layers = entry.shape.layers - 1
        # As large a part of them reads keys and values of others, if each kind of layer has its own.
        readers = min(whole.readers * layers // whole.layers, max(layers - whole.period, 0))
        kinds = all_kinds[:layers]
        shape = replace(whole, layers=layers, readers=readers, attending=kinds.count(_ATTENTION))
        shape = replace(shape, mlps=kinds.count(_EXPERTS))
        if whole.scan:
            shape = replace(shape, scan=replace(whole.scan, layers=kinds.count(_STATES) if kinds else layers))
        entry = replace(entry, shape=shape)
    return entry


def _layers(entry: CatalogEntry) -> str:
    """Return the signs of the kinds of layers, where one has either states or attention."""
    shape = entry.shape
    if entry.architecture == "NemotronHForCausalLM":
        return _NEMOTRON_LAYERS[: shape.layers]
    ends = [layer * shape.attending // shape.layers for layer in range(shape.layers + 1)]
    return "".join(_STATES if start == end else _ATTENTION for start, end in pairwise(ends)) * bool(ends[-1])


def _kinds_of_layers(entry: CatalogEntry) -> dict[str, object]:
    layers, shape = _layers(entry), entry.shape
    if entry.architecture == "NemotronHForCausalLM":
        return {"hybrid_override_pattern": layers, "mlp_hidden_act": "relu2"}
    if layers:
        states, attention = ("mamba", "attention") if shape.scan else ("linear_attention", "full_attention")
        return {"layer_types": [states if sign == _STATES else attention for sign in layers]}
    if shape.period:
        wide = [(layer + 1) % shape.period == 0 for layer in range(shape.layers)]
        return {"layer_types": ["full_attention" if each else "sliding_attention" for each in wide]}
    return {"layer_types": None}


def _experts(shape: Shape) -> dict[str, object]:
    """Return the values of a mixture, by the names of all families."""
    experts = 0 if shape.experts == 1 else shape.experts
    shared = shape.shared_mlp or shape.mlp
    return {
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), experts),
        "num_experts_per_tok": shape.used_experts,
        "moe_intermediate_size": shape.mlp,
        **dict.fromkeys(
            ("shared_intermediate_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
            shared,
        ),
    }


def _delta_net(keys: int, values: int) -> dict[str, object]:
    return {"linear_num_key_heads": keys, "linear_num_value_heads": values}


def _scan(scan: Scan) -> dict[str, object]:
    """Return the values of Mamba-2, by the names of all families."""
    return {
        "mamba_n_heads": scan.heads,
        "mamba_num_heads": scan.heads,
        "mamba_d_head": scan.head_dim,
        "mamba_head_dim": scan.head_dim,
        "mamba_d_ssm": scan.heads * scan.head_dim,
        "mamba_n_groups": scan.groups,
        "n_groups": scan.groups,
        "mamba_d_state": scan.state,
        "ssm_state_size": scan.state,
    }


def _first_mlp(shape: Shape) -> dict[str, object]:
    """Return the values of experts behind an MLP, some of which all tokens pass, by the names of all families."""
    return {
        "intermediate_size": shape.first_mlp,
        "first_k_dense_replace": 1,
        **dict.fromkeys(("n_shared_experts", "num_shared_experts"), shape.shared_mlp // shape.mlp),
    }


def _latent(shape: Shape, latent: Latent, context: int) -> dict[str, object]:
    """Return the values of latent attention, and of the choice of experts, by the names of all families."""
    return {
        "q_lora_rank": None,
        "kv_lora_rank": latent.size,
        "qk_nope_head_dim": latent.plain,
        "qk_rope_head_dim": latent.rotated,
        "v_head_dim": latent.values,
        "num_experts_per_token": shape.used_experts,
        **dict.fromkeys(("n_group", "num_expert_group", "topk_group"), 1),
        "model_max_length": context,
    }


def _readers(shape: Shape) -> dict[str, object]:
    """Return the values of Gemma's layers that read keys and values of others."""
    wide = shape.reader_mlp != shape.mlp
    return {"num_kv_shared_layers": shape.readers, "use_double_wide_mlp": wide}
