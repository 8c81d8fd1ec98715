"""Layers that read mixtures of blocks, and run in loops."""

from variants.common import COMMON, Variant

# A vocabulary whose last tokens cannot be written, windows and profiles that end among the positions, a rank of gates
# that is no whole vector; loops of two blocks, of which two rows of slots are used.
INKLING_2_LOOP = {key: value for key, value in COMMON.items() if key not in ("intermediate_size", "hidden_act")} | {
    "architectures": ["Inkling2LoopForCausalLM"],
    "model_type": "inkling2_loop_text",
    "vocab_size": 600,
    "unpadded_vocab_size": 517,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 48,
    "sliding_window_size": 22,
    "d_rel": 6,
    "rel_extent": 37,
    "log_scaling_n_floor": 50,
    "qk_l2_clip_threshold": 5.0,
    "rel_l2_clip_threshold": 1.5,
    "n_layers_per_attn_res_block": 2,
    "moe_intermediate_size": 44,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "route_scale": 2.0,
    "loop_layer_index_start": 2,
    "loop_layer_index_end": 6,
    "loop_num_passes": 3,
    "loop_gate_rank": 10,
    "layer_types": ["hybrid" if layer in (2, 5) else "hybrid_sliding" for layer in range(8)],
}
VARIANTS = [
    Variant("inkling2-loop", INKLING_2_LOOP),
    # Blocks of one layer, two of them behind the loops; the first layer sees all positions.
    Variant(
        "inkling2-loop-whole-first",
        INKLING_2_LOOP
        | {"num_hidden_layers": 5, "n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1}
        | {"loop_layer_index_end": 3, "loop_num_passes": 2, "conv_kernel_size": 3, "unpadded_vocab_size": 600}
        | {"layer_types": ["hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid_sliding"]},
        "bfloat16",
    ),
]
