"""Keys of ``config.json`` of one architecture, from metadata that some writers of GGUF files leave out."""

import pytest

from tinychat.checkpoint import gguf_configs
from tinychat.checkpoint.gguf_values import GgufValues
from tinychat.errors import CheckpointError, UnsupportedModelError

FULL, SLIDING = "full_attention", "sliding_attention"


def laguna(gate_rows=6, **metadata):
    """Return the keys of four layers of six query heads.

    metadata : more of it, or "none" to take a key away.
    """
    known = {"block_count": 4, "attention.head_count": [6] * 4, "attention.sliding_window": 24, "rope.freq_base": 5e5}
    known |= {name.replace("__", "."): value for name, value in metadata.items()}
    known = {f"laguna.{name}": value for name, value in known.items() if value != "none"}
    values = GgufValues(known, "laguna", {"blk.0.attn_gate.weight": (gate_rows, 96)}, "file")
    values.config |= values.common()
    return gguf_configs.laguna(values)


def test_every_fourth_layer_of_laguna_has_no_window():
    assert laguna()["layer_types"] == [FULL, SLIDING, SLIDING, SLIDING]
    assert laguna(attention__sliding_window_pattern=2)["layer_types"] == [FULL, SLIDING, FULL, SLIDING]
    listed = laguna(attention__sliding_window_pattern=[True, False, True, True])
    assert listed["layer_types"] == [SLIDING, FULL, SLIDING, SLIDING]


@pytest.mark.parametrize("window", [0, "none"])
def test_laguna_without_a_window(window):
    found = laguna(attention__sliding_window=window)
    assert (found["layer_types"], found["sliding_window"]) == ([FULL] * 4, None)


def test_bases_of_laguna():
    assert laguna()["rope_parameters"][SLIDING]["rope_theta"] == 5e5
    assert laguna(rope__freq_base_swa=1e4)["rope_parameters"][SLIDING]["rope_theta"] == 1e4


def test_gates_of_laguna_are_told_by_their_rows():
    assert laguna()["gating"] == "per-head"
    assert laguna(gate_rows=6 * 16)["gating"] == "per-element"


def test_experts_of_laguna_are_chosen_by_sigmoids():
    assert laguna(expert_gating_func=2) == laguna()
    with pytest.raises(UnsupportedModelError, match="no sigmoids"):
        laguna(expert_gating_func=1)


@pytest.mark.parametrize(
    ("metadata", "layout"),
    [
        ({}, None),
        ({"attention.sliding_window": 0}, None),
        ({"attention.sliding_window": 24}, [0, 1, 1, 1, 0]),
        ({"attention.sliding_window": 24, "attention.sliding_window_pattern": 2}, [0, 1, 0, 1, 0]),
    ],
)
def test_layers_of_smallthinker_without_a_window_do_not_rotate(metadata, layout):
    known = {f"smallthinker.{name}": value for name, value in {"block_count": 5, **metadata}.items()}
    values = GgufValues(known, "smallthinker", {}, "file")
    values.config |= values.common()
    found = gguf_configs.smallthinker(values)
    assert (found["sliding_window_layout"], found["rope_layout"]) == (layout, layout)


def test_blocks_of_multi_token_prediction_are_no_layers_of_ling_3():
    known = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 1, 0, 1, 1],
        "kda.gate_lower_bound": -4.0,
        "swiglu_clamp_exp": [0.0, 0.0, 0.0, 4.0, 4.0],
    }
    values = GgufValues({f"bailingmoe3.{name}": value for name, value in known.items()}, "bailingmoe3", {}, "file")
    values.config |= values.common()
    found = gguf_configs.ling3(values)
    assert (found["num_hidden_layers"], found["layer_types"]) == (4, ["linear_attention", FULL] * 2)
    assert (found["kda_lower_bound"], found["expert_swiglu_limit_list"][3]) == (-4.0, 4.0)
    assert not found.keys() & {"kda_safe_gate", "share_expert_swiglu_limit_list"}


@pytest.mark.parametrize("gains", [None, [], [2.0, 3.0]])
def test_queries_of_muse_glimmer_have_one_factor(gains):
    known = {"block_count": 4, "attention.sliding_window": 24, "rope.freq_base": 5e5}
    known = {f"muse-glimmer.{name}": value for name, value in known.items()}
    values = GgufValues(known, "muse-glimmer", {}, "file", {"blk.0.attn_q_norm.weight": gains}.get)
    values.config |= values.common()
    with pytest.raises(CheckpointError, match=r"file: blk\.0\.attn_q_norm\.weight does not hold one number"):
        gguf_configs.muse_glimmer(values)
