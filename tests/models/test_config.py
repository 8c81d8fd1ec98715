import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinychat.errors import CheckpointError, TinychatError, UnsupportedModelError
from tinychat.models.architectures import expected_shapes, norms, parse_config, read_config, supported_families
from tinychat.models.rope import angle_set
from tinychat.models.tensors import whole_and_part

FAMILIES = supported_families()
REPO = Path(__file__).parents[2]
STORIES = REPO.parent / "shared" / "data" / "stories260K"

ESSENTIALS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


# The code of these comes with their checkpoints.
REMOTE = {"new", "minicpm", "baichuan", "internlm2", "qwen", "chatglm", "bailing_moe", "smallthinker"}
# Drafters have a section of their own: see generate/test_drafter_drafts.py and test_eagle_drafts.py.
WITH_SECTION = {"gemma4_assistant", "gemma4_unified_assistant", "eagle3"}
OF_TRANSFORMERS = [
    name
    for name, family in FAMILIES.items()
    if family.model_type not in REMOTE | WITH_SECTION and name != "JinaBertModel"
]
# Of those, whose parameters have the names of the checkpoint's tensors: transformers stacks the weights of experts, and
# renames norms of OLMo Hybrid, gates of LFM3, and all of Nomic BERT, GTE, Jina and Dory; we, those of EmbeddingGemma 2.
RENAMED = (
    "OlmoHybridForCausalLM",
    "Lfm3ForCausalLM",
    "ExaoneForCausalLM",
    "NomicBertModel",
    "GteModel",
    "JinaEmbeddingsV3Model",
    "EmbeddingGemma2TextModel",
    "DoryForCausalLM",
)
OF_DENSE = [name for name in OF_TRANSFORMERS if FAMILIES[name].tensors.experts is None and name not in RENAMED]
# Keys of older files: transformers 5 writes elsewhere what they say, or takes it as given.
OLDER = {
    "hidden_act",
    "layer_norm_eps",
    "seq_length",
    "num_experts",
    "rope_theta",
    "rope_local_base_freq",
    "sliding_rope_parameters",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "full_attention_interval",
    "global_head_dim",
    "num_global_key_value_heads",
    "global_attn_every_n_layers",
    "global_rope_theta",
    "local_rope_theta",
    "sliding_attention_rope",
    "full_attention_rope",
    "num_layers",
    "layer_norm_epsilon",
    "rms_norm_eps",
    "activation_function",
    "qkv_bias",
    "bias",
}
LING = {"moe_intermediate_size": 96, "num_experts": 16, "num_experts_per_tok": 2}
# What files of a family have to say.
NEEDED = {
    "JinaBertModel": {"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    "ElectraModel": {"embedding_size": 64},
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 0},
    "DoryForCausalLM": {"n_input_layers": 1, "n_output_layers": 1},
    "Lfm3ForCausalLM": {"head_dim": 16},
    "ZayaForCausalLM": {"moe_intermediate_size": 96},
    "Kolibri1ForCausalLM": {"moe_intermediate_size": 96},
    "Cohere2MoeForCausalLM": {"moe_intermediate_size": 64},
    # transformers asks for the rotation of each kind of layers.
    "CohereCompassForCausalLM": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "PhiMoEForCausalLM": {"lm_head_bias": True},
    "PhimoeForCausalLM": {"lm_head_bias": True},
    "SolarOpenForCausalLM": {"moe_intermediate_size": 96},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "DeepseekV3ForCausalLM": {"first_k_dense_replace": 1},
    "BailingMoeForCausalLM": LING,
    "BailingMoeV2ForCausalLM": LING,
    "LaraMiniForCausalLM": {
        "moe_intermediate_size": 96,
        "layer_types": ["linear_attention", "full_attention", "sliding_attention"],
    },
    "Dots1ForCausalLM": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "KimiLinearForCausalLM": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "BailingMoeV3ForCausalLM": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "BailingHybridForCausalLM": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "GraniteMoeHybridForCausalLM": {
        "mamba_n_heads": 8,
        "num_local_experts": 0,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "BambaForCausalLM": {"mamba_n_heads": 8, "attn_layer_indices": [1]},
    "FalconH1ForCausalLM": {"mamba_n_heads": 64},
    "JambaForCausalLM": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 16},
    "NemotronHForCausalLM": {"layers_block_type": ["mamba", "mlp", "attention"]},
    "Inkling2LoopForCausalLM": {
        "moe_intermediate_size": 96,
        "unpadded_vocab_size": 90,
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 2,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    },
    # Three quarters of 64 columns are three heads.
    "OlmoHybridForCausalLM": {
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
}
# Gates of attention have no biases, and convolved queries and keys.
UNBIASED = ("AfmoeForCausalLM", "DoryForCausalLM", "MuseGlimmerForCausalLM", "ZayaForCausalLM")
# Attention in one of two layers, where a family has it in some.
SOME_ATTENTION = {"full_attention_interval": 2}
WITHOUT_ENDING = (
    ".alpha_p.weight",
    ".alpha_n.weight",
    ".layer_scalar.weight",
    ".correct_output_scale.weight",
    ".A_log.weight",
    ".dt_bias.weight",
    "mamba.D.weight",
    ".sinks.weight",
    ".conv1d.bias.weight",
)


def raw_config(architecture="LlamaForCausalLM", **changes):
    names = FAMILIES[architecture].names if architecture in FAMILIES else {}
    needed = {**ESSENTIALS, "num_key_value_heads": 2, **NEEDED.get(architecture, {})}
    return {"architectures": [architecture], **{names.get(key, key): value for key, value in needed.items()}, **changes}


def parse(architecture="LlamaForCausalLM", **changes):
    return parse_config(raw_config(architecture, **changes), "config.json")


def test_reads_a_real_file():
    if not STORIES.exists():
        pytest.skip(f"{STORIES} is not there")
    config = read_config(STORIES / "config.json")
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (64, 172, 8)
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    assert config.tie_word_embeddings and config.rope_scaling is None
    assert config.sliding_windows == (0,) * 5


@pytest.mark.parametrize("model_type", ["exaone", "internlm3", "iquestcoder"])
def test_the_model_type_counts_where_transformers_runs_another_class(model_type):
    raw = {**ESSENTIALS, "model_type": model_type, "head_dim": 16, "num_key_value_heads": 2}
    for name in ("LlamaForCausalLM", "LlamaModel"):
        config = parse_config({**raw, "architectures": [name]}, "config.json")
        assert (FAMILIES[config.architecture].model_type, config.writes) == (model_type, name != "LlamaModel")
    with pytest.raises(UnsupportedModelError, match="with architecture 'MistralForCausalLM'"):
        parse_config({**raw, "architectures": ["MistralForCausalLM"]}, "config.json")
    with pytest.raises(UnsupportedModelError, match="expected 'llama'"):
        parse_config({**raw, "architectures": ["LlamaForCausalLM"], "model_type": "qwen2"}, "config.json")


def test_a_usual_file_imports_its_own_family_only():
    """A start reads one, and 50 families take a twentieth of a second."""
    raw = raw_config(model_type="llama")
    code = f"""if True:
        import sys
        from tinychat.models.architectures import parse_config
        parse_config({raw!r}, "config.json")
        print(sum(name.startswith("tinychat.models.families.") for name in sys.modules))
    """
    assert int(subprocess.check_output([sys.executable, "-P", "-c", code], text=True)) <= 2


def test_null_is_not_missing():
    assert parse("MistralForCausalLM").sliding_windows == (4096,) * 3
    assert parse("MistralForCausalLM", sliding_window=None).sliding_windows == (0,) * 3
    assert parse(num_key_value_heads=None).num_key_value_heads == 4
    assert parse("MistralForCausalLM", head_dim=None).head_dim == 16


def test_biases_and_norms_of_each_family():
    changes = {"rotary_dim": 8, "seq_length": 256, "q_lora_rank": 16, **SOME_ATTENTION}
    found = {
        name: (c.qkv_bias, c.o_bias, c.mlp_bias, c.qk_norm)
        for name in FAMILIES
        # EAGLE-3 takes none.
        if name != "LlamaForCausalLMEagle3"
        for biased in [name not in UNBIASED]
        for c in [parse(name, attention_bias=biased, mlp_bias=True, **changes)]
    }
    assert found == {
        "BaichuanForCausalLM": (False, False, False, None),
        "BaiChuanForCausalLM": (False, False, False, None),
        "ChatGLMModel": (False, False, False, None),
        "ChatGLMForConditionalGeneration": (False, False, False, None),
        "InternLM2ForCausalLM": (True, True, False, None),
        "QWenLMHeadModel": (True, False, False, None),
        "GemmaForCausalLM": (True, True, False, None),
        "Gemma2ForCausalLM": (True, True, False, None),
        "Gemma3ForCausalLM": (True, True, False, "head"),
        "Gemma3nForCausalLM": (True, True, False, "head"),
        "Gemma4ForCausalLM": (True, True, False, "head"),
        "Gemma4UnifiedForCausalLM": (True, True, False, "head"),
        "Gemma4AssistantForCausalLM": (True, True, False, "head"),
        "Gemma4UnifiedAssistantForCausalLM": (True, True, False, "head"),
        "GlmForCausalLM": (True, False, False, None),
        "Glm4ForCausalLM": (True, False, False, None),
        "BertModel": (True, True, True, None),
        "RobertaModel": (True, True, True, None),
        "DistilBertModel": (True, True, True, None),
        "MPNetModel": (True, True, True, None),
        "ElectraModel": (True, True, True, None),
        "GteModel": (True, True, True, None),
        "JinaBertModel": (True, True, True, None),
        "JinaEmbeddingsV3Model": (True, True, True, None),
        "NewModel": (True, True, True, None),
        "XLMRobertaModel": (True, True, True, None),
        "NomicBertModel": (False, False, False, None),
        "EuroBertModel": (True, True, True, None),
        "EmbeddingGemma2TextModel": (True, True, False, "head"),
        "ModernBertModel": (True, True, True, None),
        "UltrabertModel": (True, True, True, None),
        "BloomForCausalLM": (True, True, True, None),
        "MptForCausalLM": (False, False, False, None),
        "FalconForCausalLM": (False, False, False, None),
        "GPT2LMHeadModel": (True, True, True, None),
        "GPTBigCodeForCausalLM": (True, True, True, None),
        "GPTNeoXForCausalLM": (True, True, True, None),
        "GPTJForCausalLM": (False, False, True, None),
        "OPTForCausalLM": (True, True, True, None),
        "GraniteForCausalLM": (True, True, True, None),
        "GraniteMoeForCausalLM": (True, True, False, None),
        "GraniteMoeSharedForCausalLM": (True, True, False, None),
        "GraniteMoeHybridForCausalLM": (True, True, False, None),
        "GraniteSWAForCausalLM": (True, True, True, None),
        "GraniteMoeSWAForCausalLM": (True, True, False, None),
        "HyperCLOVAXForCausalLM": (True, True, True, None),
        "BambaForCausalLM": (True, True, True, None),
        "FalconH1ForCausalLM": (True, True, True, None),
        "JambaForCausalLM": (False, False, False, None),
        "NemotronHForCausalLM": (False, False, True, None),
        "MiniCPMForCausalLM": (True, True, False, None),
        "Ministral3ForCausalLM": (False, False, False, None),
        "Olmo2ForCausalLM": (True, True, False, "width"),
        "Olmo3ForCausalLM": (True, True, False, "width"),
        "Exaone4ForCausalLM": (False, False, False, "head"),
        "PhiForCausalLM": (True, True, True, None),
        "StableLmForCausalLM": (False, False, False, None),
        "Starcoder2ForCausalLM": (True, True, True, None),
        "LlamaForCausalLM": (True, True, True, None),
        "MistralForCausalLM": (False, False, False, None),
        "MixtralForCausalLM": (False, False, False, None),
        "GptOssForCausalLM": (True, True, False, None),
        "OlmoeForCausalLM": (True, True, False, "width"),
        "Qwen2MoeForCausalLM": (True, False, False, None),
        "Qwen3MoeForCausalLM": (True, True, False, "head"),
        "Qwen2ForCausalLM": (True, False, False, None),
        "Qwen3ForCausalLM": (True, True, False, "head"),
        "Phi3ForCausalLM": (False, False, False, None),
        "SmolLM3ForCausalLM": (True, True, True, None),
        "SmallThinkerForCausalLM": (False, False, False, None),
        "MellumForCausalLM": (True, True, False, "head"),
        "YoutuForCausalLM": (True, True, False, None),
        "Mistral4ForCausalLM": (True, True, False, None),
        "MiniCPM3ForCausalLM": (True, True, True, None),
        "DeepseekV2ForCausalLM": (True, True, False, None),
        "DeepseekV3ForCausalLM": (True, True, False, None),
        "Glm4MoeLiteForCausalLM": (True, True, False, None),
        "Glm4MoeForCausalLM": (True, False, False, None),
        "BitNetForCausalLM": (True, True, False, None),
        "NanoChatForCausalLM": (True, True, False, "head"),
        "MuseGlimmerForCausalLM": (False, False, False, "head"),
        "CohereForCausalLM": (True, True, False, None),
        "Cohere2ForCausalLM": (True, True, False, None),
        "CohereCompassForCausalLM": (True, True, False, None),
        "Cohere2MoeForCausalLM": (True, True, False, None),
        "AfmoeForCausalLM": (False, False, False, "head"),
        "DoryForCausalLM": (False, False, True, "head"),
        "ExaoneMoeForCausalLM": (False, False, False, "head"),
        "ExaoneForCausalLM": (True, True, True, None),
        "InternLM3ForCausalLM": (True, True, True, None),
        "IQuestCoderForCausalLM": (True, True, True, None),
        "FlexOlmoForCausalLM": (True, True, False, "width"),
        "ApertusForCausalLM": (True, True, False, "head"),
        "Apertus1p5TextForCausalLM": (True, True, False, "head"),
        "HunYuanDenseV1ForCausalLM": (True, True, False, "rotated"),
        "HunYuanMoEV1ForCausalLM": (True, True, False, "rotated"),
        "Dots1ForCausalLM": (True, True, False, "head"),
        "PhiMoEForCausalLM": (True, True, False, None),
        "PhimoeForCausalLM": (True, True, False, None),
        "SolarOpenForCausalLM": (True, False, False, None),
        "BailingMoeForCausalLM": (False, False, False, None),
        "BailingMoeV2ForCausalLM": (False, False, False, "head"),
        "SarvamMoEForCausalLM": (True, False, False, "head"),
        "SarvamMLAForCausalLM": (True, True, False, None),
        "LaraMiniForCausalLM": (True, True, False, "head"),
        "VaultGemmaForCausalLM": (True, True, False, None),
        "CwmForCausalLM": (False, False, True, None),
        "NemotronForCausalLM": (True, True, True, None),
        "Jais2ForCausalLM": (True, True, True, None),
        "OlmoForCausalLM": (True, True, False, None),
        "Lfm2MoeForCausalLM": (False, False, False, "head"),
        "MiniMaxM2ForCausalLM": (False, False, False, "width"),
        "SeedOssForCausalLM": (True, False, True, None),
        "ArceeForCausalLM": (True, True, True, None),
        "HeliumForCausalLM": (True, False, True, None),
        "MinistralForCausalLM": (False, False, False, None),
        "Ernie4_5ForCausalLM": (False, False, False, None),
        "Ernie4_5_MoeForCausalLM": (False, False, False, None),
        "Ernie4_5_VLMoeTextForCausalLM": (False, False, False, None),
        "Lfm2ForCausalLM": (False, False, False, "head"),
        "Lfm3ForCausalLM": (True, True, False, "head"),
        "LagunaForCausalLM": (True, True, False, "head"),
        "ZayaForCausalLM": (False, False, False, None),
        "FlintForCausalLM": (True, True, False, "head"),
        "Kolibri1ForCausalLM": (False, False, False, "head"),
        "Qwen3NextForCausalLM": (True, True, False, "head"),
        "Qwen3_5ForCausalLM": (True, True, False, "head"),
        "Qwen3_5MoeForCausalLM": (True, True, False, "head"),
        "OlmoHybridForCausalLM": (True, True, False, "width"),
        "KimiLinearForCausalLM": (True, True, False, None),
        "Inkling2LoopForCausalLM": (False, False, False, None),
        "BailingMoeV3ForCausalLM": (True, True, False, None),
        "BailingHybridForCausalLM": (True, True, False, None),
    }


def test_kimi_linear():
    section = {
        "full_attn_layers": [2],
        "kda_layers": [1, 3],
        "head_dim": 32,
        "num_heads": 2,
        "short_conv_kernel_size": 3,
    }
    config = parse("KimiLinearForCausalLM", linear_attn_config=section, layer_types=None, first_k_dense_replace=2)
    net = config.delta_net
    assert (net.layers, net.key_heads, net.value_heads, net.value_dim, net.taps) == ((0, 2), 2, 2, 32, 3)
    assert (net.by_channel, config.experts.layers, config.rotary_dim) == (True, (2,), 0)
    for keys in ({"mla_use_nope": False}, {"moe_layer_freq": 2}, {"moe_router_activation_func": "softmax"}):
        with pytest.raises(UnsupportedModelError, match=next(iter(keys))):
            parse("KimiLinearForCausalLM", linear_attn_config=section, **keys)


def test_ling_3():
    keys = {"layer_types": None, "mlp_layer_types": None, "head_dim": 48, "partial_rotary_factor": 0.5}
    config = parse("BailingMoeV3ForCausalLM", num_hidden_layers=4, layer_group_size=2, **keys)
    net = config.delta_net
    assert (net.layers, net.key_heads, net.key_dim, net.rank, net.decay_bound) == ((0, 2), 4, 48, 0, -5.0)
    assert (config.rotary_dim, config.gated_heads, config.experts.layers) == (64, True, (2, 3))
    # As transformers writes them.
    written = {"head_dim": 12, "qk_rope_head_dim": 12, "linear_head_dim": 32, "num_experts_per_token": 3}
    config = parse("BailingHybridForCausalLM", mlp_layer_types=["sparse", "dense", "sparse"], **written)
    assert (config.delta_net.key_dim, config.rotary_dim) == (32, 12)
    assert (config.experts.layers, config.experts.num_experts_per_tok) == ((0, 2), 3)
    assert config.experts.limits == ()
    limits = {"expert_swiglu_limit_list": [0, None, 4], "share_expert_swiglu_limit_list": [5, 0, 0]}
    experts = parse("BailingMoeV3ForCausalLM", first_k_dense_replace=1, **limits).experts
    assert (experts.limits, experts.shared_limits) == ((math.inf, 4.0), ())
    for wrong in ([0, 4], [0, 0, -1], [0, 0, "4"], 4):
        with pytest.raises(CheckpointError, match="expert_swiglu_limit_list"):
            parse("BailingMoeV3ForCausalLM", first_k_dense_replace=1, expert_swiglu_limit_list=wrong)
    for refused in ({"kda_safe_gate": False}, {"no_kda_lora": False}, {"gated_attention_proj_granularity_type": "x"}):
        with pytest.raises(UnsupportedModelError):
            parse("BailingMoeV3ForCausalLM", **refused)


def test_smallthinker_without_lists_of_layers():
    config = parse("SmallThinkerForCausalLM", num_hidden_layers=2)
    assert (config.sliding_windows, config.rotary_dims, config.hidden_act) == ((0, 0), (128, 128), "relu")
    assert (config.experts.early, config.experts.sigmoid, config.experts.by_logits) == (True, True, True)
    softmax = parse("SmallThinkerForCausalLM", moe_primary_router_apply_softmax=True).experts
    assert (softmax.early, softmax.sigmoid, softmax.norm_topk_prob) == (True, False, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_layout": [1, 0]}, r"rope_layout is \[1, 0\]; expected a list of 3 numbers, 1 for each .* that rotates"),
        ({"sliding_window_layout": [1, 0, 2]}, r"sliding_window_layout .* 1 for each layer that has a window, else 0"),
        ({"moe_enable_early_router": False}, "moe_enable_early_router false is not supported"),
    ],
)
def test_smallthinker_refuses(changes, message):
    with pytest.raises(TinychatError, match=message):
        parse("SmallThinkerForCausalLM", **changes)


def test_olmo_hybrid():
    config = parse("OlmoHybridForCausalLM", linear_allow_neg_eigval=False)
    net = config.delta_net
    assert (config.normed_after, net.rate_scale, net.norm_eps, net.key_dim, net.value_dim) == ((1,), 1.0, 1e-5, 16, 32)
    assert parse("OlmoHybridForCausalLM").delta_net.rate_scale == 2.0
    for keys in ({"rope_theta": None}, {"rope_parameters": {"rope_theta": None, "rope_type": "default"}}):
        assert parse("OlmoHybridForCausalLM", **keys).rotary_dim == 0
    assert parse("OlmoHybridForCausalLM").rotary_dim == 16


def test_gemma_layers():
    assert parse("Gemma2ForCausalLM", sliding_window=7).sliding_windows == (7, 0, 7)
    gemma3 = parse("Gemma3ForCausalLM", sliding_window=7, sliding_window_pattern=2, query_pre_attn_scalar=64)
    assert (gemma3.sliding_windows, gemma3.angle_sets) == ((7, 0, 7), (1, 0, 1))
    assert (gemma3.rope_theta, gemma3.sliding_rope_theta, gemma3.attention_scale) == (1e6, 1e4, 0.125)
    assert parse("GemmaForCausalLM", hidden_act="gelu").hidden_act == "gelu_tanh"
    assert parse("GemmaForCausalLM", hidden_size=100).embedding_multiplier == 10


GEMMA4 = {"hidden_size_per_layer_input": 8, "global_head_dim": 48, "head_dim": 24}


def test_gemma_4_layers():
    config = parse("Gemma4ForCausalLM", num_hidden_layers=8, num_kv_shared_layers=2, **GEMMA4)
    varied = config.varied
    assert (varied.wide, varied.sources, varied.wide_mlps) == ((5, 7), (0, 1, 2, 3, 4, 5, 4, 5), ())
    assert (config.rotary_dims[4:], config.sliding_windows[4:]) == ((24, 48, 24, 48), (512, 0, 512, 0))
    assert config.cache_shapes == ((5, 2, 24), (1, 2, 48))
    twice = parse("Gemma4ForCausalLM", num_hidden_layers=8, num_kv_shared_layers=2, use_double_wide_mlp=True, **GEMMA4)
    assert twice.varied.wide_mlps == (6, 7)
    # Keys are values where they are said to be, and only there the larger heads have a number of their own.
    large = GEMMA4 | {"hidden_size_per_layer_input": 0, "num_global_key_value_heads": 1}
    heads = [
        parse("Gemma4ForCausalLM", attention_k_eq_v=flag, **large).varied.wide_key_value_heads for flag in (False, True)
    ]
    assert heads == [2, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3; expected an integer from 0 to 2"),
        ({"global_head_dim": 47}, "global_head_dim is 47; expected an even number"),
        ({"vocab_size_per_layer_input": 50}, "vocab_size_per_layer_input is 50; expected the vocab_size"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "num_global_key_value_heads is 3"),
        ({"layer_types": ["full_attention"] * 3}, "layers of one kind only"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"enable_moe_block": True}, "num_experts is missing"),
        (
            {"enable_moe_block": True, "use_double_wide_mlp": True, "num_hidden_layers": 8, "num_kv_shared_layers": 2},
            "moe",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "yarn"}}}, "rope type 'yarn'"),
    ],
)
def test_other_gemma_4_is_refused(changes, message):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        parse("Gemma4ForCausalLM", **GEMMA4 | changes)


def test_gemma_3n_layers():
    sizes = {"num_hidden_layers": 12, "intermediate_size": [96] * 12, "vocab_size_per_layer_input": 90}
    config = parse("Gemma3nForCausalLM", **sizes, num_kv_shared_layers=3)
    assert (config.varied.sources[8:], config.varied.wide, config.varied.input_ids) == ((8, 4, 8, 8), (), 90)
    assert (config.sliding_windows[3:6], config.angle_sets[3:6], config.sliding_rope_theta) == (
        (512, 0, 512),
        (1, 0, 1),
        1e4,
    )
    # Of so many layers, the first ten have sparse gates: a twentieth is open.
    assert config.altup.cutoffs == (pytest.approx(1.6448536),) * 10 + (None,) * 2
    few = parse("Gemma3nForCausalLM", activation_sparsity_pattern=[0.5, 0.0, 0.9])
    assert few.altup.cutoffs == (0.0, None, pytest.approx(1.2815516))
    assert parse("Gemma3nForCausalLM").altup.cutoffs == (None,) * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"altup_num_inputs": 3}, "altup_num_inputs other than 4"),
        ({"altup_active_idx": 1}, "altup_active_idx other than 0"),
        ({"altup_correct_scale": False}, "altup_correct_scale false"),
        ({"hidden_size": 72}, "hidden_size is 72; expected a multiple of 16"),
        ({"intermediate_size": [96, 96, 192]}, "intermediate_size is"),
        ({"activation_sparsity_pattern": [0.5, 0.5]}, "activation_sparsity_pattern"),
        ({"activation_sparsity_pattern": [0.5, 1.0, 0]}, "activation_sparsity_pattern"),
        ({"laurel_rank": 0}, "laurel_rank"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input"),
        ({"num_hidden_layers": 6, "num_kv_shared_layers": 3}, "num_kv_shared_layers"),
    ],
)
def test_other_gemma_3n_is_refused(changes, message):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        parse("Gemma3nForCausalLM", **changes)


def test_layers_of_two_kinds_in_the_form_of_transformers_5():
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    config = parse("Gemma3ForCausalLM", rope_parameters=ropes)
    assert (config.rope_theta, config.rope_scaling.factor, config.sliding_rope_theta) == (2e6, 8.0, 3e4)
    ropes["sliding_attention"] = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match="layers with a window"):
        parse("Gemma3ForCausalLM", rope_parameters=ropes)


def test_olmo3_has_one_set_of_angles_unless_it_stretches_some():
    assert parse("Olmo3ForCausalLM").sliding_rope_theta is None
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert parse("Olmo3ForCausalLM", rope_scaling=yarn).sliding_rope_theta == 5e5


def test_exaone_rotates_where_it_has_a_window_if_it_has_any():
    assert parse("Exaone4ForCausalLM", sliding_window=None).rotary_dims == (16, 16, 16)
    assert parse("Exaone4ForCausalLM", sliding_window=9, sliding_window_pattern=2).rotary_dims == (16, 0, 16)


@pytest.mark.parametrize(
    ("architecture", "changes", "match"),
    [
        ("CohereForCausalLM", {"use_qk_norm": True}, "use_qk_norm"),
        ("ApertusForCausalLM", {"hidden_act": "silu"}, "hidden_act"),
        ("PhiForCausalLM", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("Gemma2ForCausalLM", {"hidden_activation": "xielu"}, "hidden_activation"),
        ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling"),
        ("StableLmForCausalLM", {"layer_norm_eps": "1e-5"}, "layer_norm_eps"),
        ("Ministral3ForCausalLM", {"rope_parameters": {"rope_type": "default"}}, "original_max_position_embeddings"),
        ("GPT2LMHeadModel", {"n_embd": "64"}, "n_embd"),
        ("GPT2LMHeadModel", {"n_head": 5}, "n_embd"),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("GPTJForCausalLM", {"rotary_dim": 7}, "rotary_dim"),
        ("QWenLMHeadModel", {}, "seq_length is missing"),
        ("ChatGLMModel", {"padded_vocab_size": None}, "padded_vocab_size is missing"),
        ("ChatGLMModel", {"post_layer_norm": False}, "post_layer_norm false"),
        ("ChatGLMModel", {"rope_ratio": 16, "_name_or_path": "THUDM/chatglm2-6b-32k"}, "rope_ratio of ChatGLM 2"),
        ("OPTForCausalLM", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
        ("OPTForCausalLM", {"do_layer_norm_before": "after"}, "do_layer_norm_before"),
        ("OPTForCausalLM", {"word_embed_proj_dim": 32, "tie_word_embeddings": False}, "tie_word_embeddings"),
        ("OPTForCausalLM", {"word_embed_proj_dim": "32"}, "word_embed_proj_dim"),
        ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
        ("BloomForCausalLM", {"hidden_size": [64]}, "hidden_size"),
        ("MptForCausalLM", {"attn_config": {"clip_qkv": 8}}, "clip_qkv"),
        ("MptForCausalLM", {"attn_config": {"alibi": False}}, "alibi"),
        ("FalconForCausalLM", {"alibi": True}, "alibi"),
        ("FalconForCausalLM", {"parallel_attn": False}, "parallel_attn"),
        ("Gemma3ForCausalLM", {"rope_parameters": {"sliding_attention": [1]}}, "sliding_rope_parameters"),
        ("Lfm2ForCausalLM", {"conv_bias": True}, "conv_bias"),
        ("Lfm2ForCausalLM", {"full_attn_idxs": []}, "no layer has attention"),
        ("Lfm2ForCausalLM", {"full_attn_idxs": [3]}, "full_attn_idxs"),
        ("Lfm2ForCausalLM", {"layer_types": ["conv"] * 2}, "layer_types"),
        ("Lfm2ForCausalLM", {"layer_types": ["conv", "mamba", "full_attention"]}, "mamba"),
        ("Lfm2ForCausalLM", {"conv_L_cache": 0}, "conv_L_cache"),
        ("Lfm2ForCausalLM", {"head_dim": 24}, "hidden_size"),
        ("Lfm2ForCausalLM", {"norm_eps": 0}, "norm_eps"),
        ("Apertus1p5TextForCausalLM", {"output_vocab_size": 101}, "output_vocab_size"),
        ("Apertus1p5TextForCausalLM", {"output_vocab_size": 99, "tie_word_embeddings": True}, "output_vocab_size"),
        ("IQuestCoderForCausalLM", {"use_sliding_window": True}, "use_sliding_window"),
        ("IQuestCoderForCausalLM", {"clip_qkv": 8.0}, "clip_qkv"),
        ("ExaoneForCausalLM", {"layer_norm_epsilon": 0}, "layer_norm_epsilon"),
        ("ExaoneForCausalLM", {"activation_function": "swiglu9"}, "activation_function"),
        ("InternLM3ForCausalLM", {"qkv_bias": True, "bias": False}, "bias"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1e4, 1e4, 0.5]}, "layer_rope_theta"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1e4, 1e4]}, "layer_rope_theta"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1e4, 1e4, -1]}, "layer_rope_theta"),
        ("GraniteSWAForCausalLM", {"layer_rope_theta": [1e4, 1e4, 2e4]}, "several bases"),
        ("HyperCLOVAXForCausalLM", {"use_post_norm": False}, "use_post_norm"),
        ("MuseGlimmerForCausalLM", {"head_dim": 24}, "head_dim is 24; expected a multiple of 16"),
        ("MuseGlimmerForCausalLM", {"attention_bias": True}, "attention_bias true"),
        ("MuseGlimmerForCausalLM", {"layer_rope_theta": [1e4, 0]}, "a list of 3 numbers"),
        ("MuseGlimmerForCausalLM", {"layer_rope_theta": [1e4, 0, 5e5]}, "layer_rope_theta other than 0 or 10000"),
        ("MuseGlimmerForCausalLM", {"post_norm_eps": 0}, "post_norm_eps"),
        ("MuseGlimmerForCausalLM", {"qk_scale_factor": 0}, "qk_scale_factor"),
        ("LagunaForCausalLM", {"gating": "per-element"}, "gating is supported by head only"),
        ("LagunaForCausalLM", {"gating": False}, "gating is supported by head only"),
        ("LagunaForCausalLM", {"gating_types": ["per_head", "per_element"]}, "gating_types is supported by head only"),
        ("LagunaForCausalLM", {"gating_types": "per_head"}, "gating_types is supported by head only"),
        ("LagunaForCausalLM", {"mlp_layer_types": ["dense", ["sparse"], "sparse"]}, "mlp_layer_types"),
        (
            "LagunaForCausalLM",
            {"num_attention_heads_per_layer": [4, 2]},
            "a list of 3 multiples of num_key_value_heads",
        ),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [4, 3, 4]}, "a list of 3 multiples"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [True, 2, 4]}, "a list of 3 multiples"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [2, 4, 6]}, "of three numbers is not supported"),
        ("LagunaForCausalLM", {"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input true"),
        ("LagunaForCausalLM", {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
        ("LagunaForCausalLM", {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
        (
            "LagunaForCausalLM",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "sliding",
        ),
        ("ZayaForCausalLM", {"attention_bias": True}, "attention_bias true"),
        ("ZayaForCausalLM", {"lm_head_bias": True}, "lm_head_bias true"),
        ("ZayaForCausalLM", {"cca_time0": 3}, "cca_time0 other than 2"),
        ("ZayaForCausalLM", {"cca_time1": 1}, "cca_time1 other than 2"),
        ("ZayaForCausalLM", {"num_experts_per_tok": 2}, "num_experts_per_tok other than 1"),
        ("ZayaForCausalLM", {"head_dim": 24}, "head_dim is 24; expected a multiple of 32"),
        ("ZayaForCausalLM", {"router_hidden_size": 0}, "router_hidden_size"),
        ("ZayaForCausalLM", {"layer_types": ["hybrid", ["hybrid"], "hybrid"]}, "layer type"),
        ("ZayaForCausalLM", {"layer_types": ["mamba"] * 3}, "supported are hybrid, hybrid_sliding"),
        ("ZayaForCausalLM", {"layer_types": ["hybrid_sliding"] * 3}, "sliding_window"),
        ("ZayaForCausalLM", {"rope_parameters": {"hybrid": 3}}, "hybrid is 3"),
        ("ZayaForCausalLM", {"rope_parameters": [1]}, "rope_parameters"),
        ("ZayaForCausalLM", {"rope_parameters": {"rope_theta": 1e6}}, "an object with hybrid"),
        ("ZayaForCausalLM", {"rope_parameters": {"hybrid": {"rope_type": "yarn"}}}, "rope types other than default"),
        ("ZayaForCausalLM", {"rope_parameters": {"hybrid": {"partial_rotary_factor": 0.5}}}, "rope_theta"),
        ("AfmoeForCausalLM", {"head_dim": 24}, "head_dim is 24; expected a multiple of 16"),
        ("DoryForCausalLM", {"recurrent_kv_cache_mode": "last_loop"}, "'last_loop' is not supported, as replies would"),
        ("DoryForCausalLM", {"n_input_layers": 0}, "n_input_layers is 0; expected an integer from 1 to 2"),
        ("DoryForCausalLM", {"n_input_layers": 2}, "n_recurrent_layers is missing; expected 1"),
        ("DoryForCausalLM", {"n_recurrent_layers": 2}, "n_recurrent_layers is 2; expected 1: with those before"),
        ("DoryForCausalLM", {"n_recurrent_loops": 0}, "n_recurrent_loops is 0; expected an integer"),
        ("DoryForCausalLM", {"attention_bias": True}, "attention_bias true"),
        ("DoryForCausalLM", {"tie_word_embeddings": True}, "tie_word_embeddings true"),
        ("DoryForCausalLM", {"head_dim": 24}, "head_dim is 24; expected a multiple of 16"),
        ("DoryForCausalLM", {"initializer_range": 0}, "initializer_range is 0"),
        (
            "DoryForCausalLM",
            {"num_hidden_layers": 6, "n_input_layers": 2, "n_output_layers": 2, "layer_types": ["mlp"] * 6},
            "layer type 'mlp' is not supported",
        ),
        (
            "DoryForCausalLM",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "layers with a window",
        ),
        ("Lfm3ForCausalLM", {"use_attention_gate": False}, "use_attention_gate"),
        ("Lfm3ForCausalLM", {"use_sandwich_norm": False}, "use_sandwich_norm"),
        ("Lfm3ForCausalLM", {"layer_types": ["sliding_attention"] * 3, "sliding_window": None}, "sliding_window"),
        ("Lfm3ForCausalLM", {"layer_types": ["conv"] * 3}, "no layer has attention"),
        ("Lfm3ForCausalLM", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters"),
        ("DeepseekV2ForCausalLM", {"topk_method": "group_limited_greedy", "n_group": 8}, "n_group above 1"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob true"),
        ("DeepseekV3ForCausalLM", {"n_group": 7}, "n_group is 7; expected a number of groups of two or more"),
        ("DeepseekV3ForCausalLM", {"n_group": 128, "topk_group": 3}, "topk_group is 3; expected groups of 8"),
        ("DeepseekV3ForCausalLM", {"n_group": 8, "topk_group": 9}, "topk_group"),
        ("Glm4MoeLiteForCausalLM", {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
        ("Mistral4ForCausalLM", {"n_group": 2}, "n_group above 1"),
        ("Mistral4ForCausalLM", {"routed_scaling_factor": 2.5}, "routed_scaling_factor"),
        ("YoutuForCausalLM", {"kv_lora_rank": 40}, "kv_lora_rank is 40; expected a multiple of 16"),
        ("YoutuForCausalLM", {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ("YoutuForCausalLM", {"attention_bias": True, "q_lora_rank": None}, "attention_bias true"),
        ("Qwen3_5ForCausalLM", {}, "layers of one kind"),
        ("Qwen3_5ForCausalLM", {"layer_types": ["full_attention"] * 3}, "layers of one kind"),
        ("Qwen3_5ForCausalLM", {"hidden_act": "gelu"}, "hidden_act"),
        ("Qwen3_5ForCausalLM", {"head_dim": 24}, "head_dim"),
        ("Qwen3_5ForCausalLM", {"full_attention_interval": 2, "linear_key_head_dim": 24}, "linear_key_head_dim"),
        ("Qwen3_5ForCausalLM", {"full_attention_interval": 2, "linear_num_value_heads": 24}, "multiple of linear_num"),
        ("Qwen3_5ForCausalLM", {"full_attention_interval": 2, "linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
    ],
)
def test_what_a_family_cannot_be_is_named_as_in_its_file(architecture, changes, match):
    with pytest.raises((UnsupportedModelError, CheckpointError), match=match):
        parse(architecture, **changes)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_windows(architecture):
    windowed = {"use_sliding_window": True, "sliding_window": 7}
    assert parse(architecture, sliding_window=7, max_window_layers=0).sliding_windows == (0, 0, 0)
    assert parse(architecture, **windowed, max_window_layers=1).sliding_windows == (0, 7, 7)
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert parse(architecture, **windowed, layer_types=layer_types).sliding_windows == (7, 0, 7)


def test_layers_of_dots1():
    config = parse("Dots1ForCausalLM", max_window_layers=2, sliding_window=7, first_k_dense_replace=1)
    assert (config.sliding_windows, config.experts.layers, config.experts.norm_topk_prob) == ((0, 0, 7), (1, 2), False)
    assert parse("Dots1ForCausalLM", max_window_layers=0, sliding_window=None).sliding_windows == (0,) * 3


def test_layers_of_cohere2():
    config = parse("Cohere2ForCausalLM", num_hidden_layers=4, sliding_window=7)
    assert config.sliding_windows == (7, 7, 7, 0)
    assert [bool(dim) for dim in config.rotary_dims] == [True, True, True, False]
    with pytest.raises(CheckpointError, match="layers that have it"):
        parse("Cohere2ForCausalLM", layer_types=["full_attention"] * 3)


def test_layers_of_cohere2_with_experts():
    config = parse("Cohere2MoeForCausalLM", num_hidden_layers=6, first_k_dense_replace=2, sliding_window=7)
    assert (config.sliding_windows, config.experts.layers) == ((0, 0, 7, 7, 7, 0), (2, 3, 4, 5))
    assert [bool(dim) for dim in config.rotary_dims] == [True] * 5 + [False]
    assert (config.intermediate_size, config.experts.intermediate_size, config.layer_norm) == (96, 64, True)
    other = {"prefix_dense_sliding_window_pattern": 2, "prefix_dense_intermediate_size": None, "rms_norm_eps": 1e-4}
    config = parse(
        "Cohere2MoeForCausalLM", first_k_dense_replace=2, sliding_window_pattern=1, num_shared_experts=3, **other
    )
    assert (config.sliding_windows, config.intermediate_size) == ((4096, 0, 0), 64)
    assert [bool(dim) for dim in config.rotary_dims] == [True, False, False]
    assert (config.layer_norm, config.rms_norm_eps) == (False, 1e-4)
    assert (config.experts.shared_intermediate_size, config.experts.scale) == (192, 0.5)
    sigmoid = parse("Cohere2MoeForCausalLM", expert_selection_fn="sigmoid", norm_topk_prob=False).experts
    assert (sigmoid.sigmoid, sigmoid.norm_topk_prob, sigmoid.biased, sigmoid.scale) == (True, False, False, 1.0)
    assert parse("Cohere2MoeForCausalLM", norm_topk_prob=False).experts.norm_topk_prob
    for changes in ({"expert_selection_fn": "topk"}, {"shared_expert_combination_strategy": "max"}):
        with pytest.raises(CheckpointError, match=next(iter(changes))):
            parse("Cohere2MoeForCausalLM", **changes)


def test_layers_of_north_micro_vision():
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]

    def rotation(sliding, full, **changes):
        ropes = {"sliding_attention": sliding, "full_attention": full, "rope_theta": 7e7}
        config = parse("CohereCompassForCausalLM", layer_types=kinds, rope_parameters=ropes, **changes)
        assert (config.sliding_windows, config.logits_multiplier) == ((4096, 0, 4096), 1.0)
        return config.rotary_dims, config.rope_theta, config.sliding_rope_theta

    assert rotation({"rope_theta": 5e4}, None) == ((16, 0, 16), 5e4, None)
    assert rotation(None, {"rope_theta": 5e4}, logit_scale=None) == ((0, 16, 0), 5e4, None)
    assert rotation({"rope_theta": 5e4}, {"rope_theta": 1e6}) == ((16, 16, 16), 1e6, 5e4)
    assert rotation(None, None)[0] == (0, 0, 0)
    config = parse("CohereCompassForCausalLM", rope_parameters=None, rope_theta=3e4)
    assert (config.sliding_windows, config.rotary_dims, config.rope_theta) == ((0,) * 3, (16,) * 3, 3e4)


def test_layers_of_afmoe():
    config = parse("AfmoeForCausalLM", num_hidden_layers=4, sliding_window=7, num_dense_layers=2, mup_enabled=True)
    assert (config.sliding_windows, config.experts.layers) == ((7, 7, 7, 0), (2, 3))
    assert [bool(dim) for dim in config.rotary_dims] == [True, True, True, False]
    assert config.embedding_multiplier == config.hidden_size**0.5


def test_layers_of_dory():
    config = parse("DoryForCausalLM", num_hidden_layers=5, n_recurrent_loops=3, sliding_window=7)
    assert config.layer_runs == config.cache_layers == (0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4)
    assert (config.loops.held_after, config.loops.rejoined_after) == (0, (3, 6))
    assert [config.cache_layer(index) for index in range(11)] == [*range(11)]
    assert config.sliding_windows == (7, 7, 7, 0, 7) and config.rope_theta == 1e7 and config.sliding_rope_theta == 1e4
    kinds = ["full_attention", "mlp", "sliding_attention", "mlp", "sliding_attention", "mlp"]
    counts = {"num_hidden_layers": 6, "n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2}
    published = parse("DoryForCausalLM", layer_types=kinds, sliding_window=7, **counts)
    assert (published.layer_runs, published.sliding_windows) == ((0, 1, 1, 2), (0, 7, 7))
    once = parse("DoryForCausalLM", n_recurrent_loops=1, recurrent_kv_cache_mode="last_loop")
    assert (once.loops, once.layer_runs, once.runs_per_layer) == (None, (0, 1, 2), 1.0)


def test_layers_of_exaone_with_experts():
    config = parse("ExaoneMoeForCausalLM", num_hidden_layers=4, sliding_window=7)
    assert (config.sliding_windows, config.experts.layers) == ((7, 7, 7, 0), (1, 2, 3))
    assert [bool(dim) for dim in config.rotary_dims] == [True, True, True, False]
    assert parse("ExaoneMoeForCausalLM", mlp_layer_types=["sparse", "dense", "sparse"]).experts.layers == (0, 2)


def test_norms_of_stablelm():
    config = parse("StableLmForCausalLM", qk_layernorm=True)
    sizes = {norm.name: norm.size for norm in norms(config)}
    assert (config.qk_norm, sizes["q_norm"], sizes["k_norm"]) == ("heads", 64, 32)


def test_base_of_hunyuan():
    scaling = {"type": "dynamic", "alpha": 50.0, "factor": 1.0}
    config = parse("HunYuanDenseV1ForCausalLM", head_dim=16, rope_scaling=scaling)
    assert config.rope_theta == pytest.approx(1e4 * 50 ** (16 / 14))
    assert config.rope_scaling is None
    assert (
        parse("HunYuanDenseV1ForCausalLM", rope_scaling=scaling | {"alpha": None}).rope_scaling.rope_type == "dynamic"
    )


def test_numbers_of_layers_of_hunyuan():
    config = parse("HunYuanMoEV1ForCausalLM", num_experts=4, moe_topk=[2, 2, 2], moe_intermediate_size=[8, 8, 8])
    assert (config.experts.num_experts_per_tok, config.experts.intermediate_size) == (2, 8)
    with pytest.raises(CheckpointError, match="moe_topk"):
        parse("HunYuanMoEV1ForCausalLM", num_experts=4, moe_topk=[2, 1, 2])


def test_layers_of_lfm2():
    layer_types = ["conv", "full_attention", "conv"]
    config = parse("Lfm2ForCausalLM", layer_types=layer_types, full_attn_idxs=[0], conv_L_cache=4)
    assert (config.conv_layers, config.attention_layers, config.conv_L_cache) == ((0, 2), (1,), 4)
    assert (config.sliding_windows, config.rotary_dims) == ((4, 0, 4), (0, 16, 0))
    assert parse("Lfm2ForCausalLM", full_attn_idxs=[2, 0]).conv_layers == (1,)
    assert parse("Lfm2ForCausalLM").cache_layers == (0, 1, 2)
    # What a position's 64 numbers take, beside keys and values of 16 each.
    shapes = [(4, (0, 1, 2)), (2, (0, 1, 2)), (1, (0, 0, 1, 2, 2))]
    for heads, layers in shapes:
        changes = {"layer_types": layer_types, "num_key_value_heads": heads}
        assert parse("Lfm2ForCausalLM", **changes).cache_layers == layers


def test_layers_with_a_state():
    config = parse("Qwen3_5ForCausalLM", layer_types=["linear_attention", "full_attention", "linear_attention"])
    assert (config.state_layers, config.attention_layers, config.cache_layers) == ((0, 2), (1,), (1,))
    assert (config.rotary_dim, config.head_dim, config.gated_attention) == (64, 256, True)
    net = config.delta_net
    assert (net.key_size, net.value_size, net.channels) == (2048, 4096, 8192)
    assert net.state_bytes == 2 * 4 * (3 * 8192 + 32 * 128 * 128)
    by_interval = parse("Qwen3NextForCausalLM", full_attention_interval=3)
    assert (by_interval.state_layers, by_interval.experts.layers) == ((0, 1), (0, 1, 2))


def test_sizes_of_latent_attention():
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale_all_dim": 0.707}
    config = parse("YoutuForCausalLM", rope_scaling=yarn, qk_nope_head_dim=192, v_head_dim=256)
    assert (config.num_key_value_heads, config.head_dim, config.value_dim, config.rotary_dims) == (
        1,
        576,
        512,
        (64,) * 3,
    )
    assert config.attention_scale == pytest.approx(256**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2)
    assert parse("YoutuForCausalLM", q_lora_rank=None).latents.q_lora_rank == 0
    assert parse("MiniCPM3ForCausalLM").value_dim == 256 and parse("MiniCPM3ForCausalLM").latents.v_head_dim == 16


def test_layers_of_bamba():
    config = parse("BambaForCausalLM", rope_parameters={"rope_theta": 1e4})
    assert (config.state_layers, config.attention_layers, config.rotary_dims) == ((0, 2), (1,), (8,) * 3)
    with pytest.raises(CheckpointError, match=r"attn_layer_indices is .*each from 0 to 2"):
        parse("BambaForCausalLM", attn_layer_indices=[1, 3])
    with pytest.raises(UnsupportedModelError, match="layers of one kind only"):
        parse("BambaForCausalLM", attn_layer_indices=None)


def test_layers_of_nemotron_h():
    older = {"layers_block_type": None, "hybrid_override_pattern": "ME*-"}
    config = parse("NemotronHForCausalLM", **older, moe_latent_size=24)
    assert (config.mamba.layers, config.experts.layers, config.dense_layers) == ((0,), (1,), (3,))
    assert (config.attention_layers, config.cache_layers, config.mlp_alone) == ((2,), (2,), (1, 3))
    assert (config.experts.latent_size, config.experts.shared_intermediate_size, config.rotary_dim) == (24, 7688, 0)
    assert config.mamba.step_limits == (0.001, float("inf"))
    assert parse("NemotronHForCausalLM").num_hidden_layers == 3
    for pattern in ("MM-", "M*", "M-*X"):
        with pytest.raises(UnsupportedModelError, match="layer"):
            parse("NemotronHForCausalLM", layers_block_type=None, hybrid_override_pattern=pattern)
    for changes in ({"layers_block_type": 3}, {"mamba_hidden_act": "relu"}, {**older, "mlp_bias": True}):
        with pytest.raises((CheckpointError, UnsupportedModelError)):
            parse("NemotronHForCausalLM", **changes)


def test_layers_of_falcon_h1():
    config = parse("FalconH1ForCausalLM", attention_in_multiplier=2, key_multiplier=0.25, mlp_multipliers=[0.5, 3])
    assert config.state_layers == config.attention_layers == config.cache_layers == (0, 1, 2)
    assert (config.mamba.value_size, config.mamba.normed) == (1024, False)
    multipliers = dict(config.linear_multipliers)
    assert (multipliers["qkv_proj"], multipliers["gate_up_proj"], multipliers["down_proj"]) == (
        (2, 0.5, 2),
        (0.5, 1),
        (3,),
    )
    assert parse("FalconH1ForCausalLM", mamba_d_ssm=None, mamba_expand=16).mamba.value_dim == 16
    for changes in (
        {"attention_bias": True, "attention_in_multiplier": 2},
        {"mamba_rms_norm": True},
        {"projectors_bias": True},
    ):
        with pytest.raises(UnsupportedModelError):
            parse("FalconH1ForCausalLM", **changes)
    with pytest.raises(CheckpointError, match=r"ssm_multipliers is .* a list of 5 numbers"):
        parse("FalconH1ForCausalLM", ssm_multipliers=[1.0])


def test_experts_of_granite():
    assert parse("GraniteMoeHybridForCausalLM").experts is None
    experts = parse("GraniteMoeHybridForCausalLM", num_local_experts=4).experts
    assert (experts.num_experts, experts.num_experts_per_tok, experts.layers) == (4, 2, (0, 1, 2))
    assert (experts.intermediate_size, experts.shared_intermediate_size) == (96, 1024)


def test_layers_of_mamba():
    changes = {"layer_types": ["mamba", "attention", "mamba"], "mamba_d_state": 32}
    config = parse("GraniteMoeHybridForCausalLM", **changes, time_step_limit=[0, 2])
    assert (config.state_layers, config.attention_layers, config.cache_layers) == ((0, 2), (1,), (1,))
    net = config.mamba
    assert (net.key_size, net.value_size, net.channels, net.step_limits) == (32, 128, 192, (0, 2))
    assert (net.value_dim, config.intermediate_size, config.rotary_dims) == (16, 1024, (0, 0, 0))
    assert parse("GraniteMoeHybridForCausalLM", **changes, position_embedding_type="rope").rotary_dims == (16,) * 3
    unbounded = [0.0, {"__float__": "Infinity"}]
    assert parse("GraniteMoeHybridForCausalLM", **changes, time_step_limit=unbounded).mamba.step_limits == (0, math.inf)
    for limits in (3, [1], [2, 1], [0, "1"], [float("nan"), 1]):
        with pytest.raises(CheckpointError, match="time_step_limit"):
            parse("GraniteMoeHybridForCausalLM", **changes, time_step_limit=limits)


def test_bases_of_granite_swash():
    def bases(*thetas, **changes):
        config = parse("GraniteSWAForCausalLM", num_hidden_layers=len(thetas), layer_rope_theta=[*thetas], **changes)
        assert config.sinks and config.sliding_windows == (0, 128, 128)
        return config.rope_theta, config.sliding_rope_theta, config.rotary_dims

    assert bases(1e6, 5e3, 0) == (1e6, 5e3, (16, 16, 0))
    assert bases(0, 5e3, 5e3) == (5e3, None, (0, 16, 16))
    assert bases(1e6, 0, 0) == (1e6, None, (16, 0, 0))
    assert bases(0, 0, 0, rope_theta=3e4) == (3e4, None, (0, 0, 0))
    scaling = {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2] * 8}
    config = parse("GraniteSWAForCausalLM", layer_rope_theta=[0, 0, 0], rope_scaling=scaling)
    assert (config.rope_scaling, config.rotary_dims) == (None, (0, 0, 0))
    config = parse("GraniteSWAForCausalLM", rope_theta=3e4)
    assert (config.rope_theta, config.sliding_rope_theta, config.rotary_dims) == (3e4, None, (16, 16, 16))


def test_layers_of_muse_glimmer():
    config = parse("MuseGlimmerForCausalLM", num_hidden_layers=6, sliding_window=7, head_dim=16, qk_scale_factor=3.0)
    assert config.sliding_windows == (7, 0, 7, 7, 7, 0)
    assert (config.rotary_dims, config.attention_scale) == ((16, 0, 16, 16, 16, 0), 0.75)
    thetas = parse("MuseGlimmerForCausalLM", rope_theta=5e5, layer_rope_theta=[0, 5e5, 0.0])
    assert (thetas.rotary_dims, thetas.sliding_windows) == ((0, 128, 0), (2048, 2048, 0))


def test_layers_of_laguna():
    config = parse("LagunaForCausalLM", head_dim=16, num_key_value_heads=2)
    assert (config.num_attention_heads, config.other_heads, config.other_heads_at) == (4, 0, ())
    assert (config.sliding_windows, config.rotary_dims, config.experts.layers) == ((0, 0, 0), (8, 8, 8), (1, 2))
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    heads = {"num_key_value_heads": 2, "num_attention_heads_per_layer": [6, 4, 6]}
    config = parse("LagunaForCausalLM", head_dim=16, layer_types=kinds, sliding_window=9, **heads)
    assert (config.num_attention_heads, config.other_heads, config.other_heads_at) == (6, 4, (1,))
    assert (config.sliding_windows, config.rotary_dims, config.rotary_dim) == ((9, 0, 9), (16, 8, 16), 8)
    assert (config.rope_theta, config.sliding_rope_theta, config.angle_sets) == (5e5, 1e4, (1, 0, 1))
    ignored = parse("LagunaForCausalLM", norm_topk_prob=False, n_group=2, topk_group=1).experts
    assert (ignored.norm_topk_prob, ignored.n_group, ignored.topk_group) == (True, 1, 1)
    stretched = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "factor": 2.0}
    ropes = {"full_attention": stretched | {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}
    parts = {"head_dim": 16, "rope_parameters": ropes}
    assert parse("LagunaForCausalLM", **parts).rope_scaling.rope_type == "longrope"
    assert parse("LagunaForCausalLM", layer_types=["sliding_attention"] * 3, **parts).rope_scaling is None


def test_layers_of_zaya():
    # As the published file has it: a type beside the two kinds.
    ropes = {"hybrid": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}, "rope_type": "default"}
    config = parse("ZayaForCausalLM", head_dim=64, num_key_value_heads=2, rope_parameters=ropes)
    assert (config.rope_theta, config.sliding_windows, config.rotary_dims) == (1e6, (0,) * 3, (16,) * 3)
    kinds = ["hybrid", "hybrid_sliding", "hybrid"]
    config = parse("ZayaForCausalLM", head_dim=32, num_key_value_heads=2, layer_types=kinds, sliding_window=7)
    assert (config.sliding_windows, config.rope_theta, config.sliding_rope_theta) == ((0, 7, 0), 5e6, 1e4)
    assert (config.angle_sets, config.rotary_dims, config.attention_layers) == ((0, 1, 0), (16,) * 3, (0, 1, 2))
    ropes = {"hybrid": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}, "hybrid_sliding": {"rope_theta": 2e4}}
    both = {"head_dim": 32, "layer_types": kinds, "sliding_window": 7, "rope_parameters": ropes}
    config = parse("ZayaForCausalLM", **both)
    assert (config.rope_theta, config.sliding_rope_theta, config.rotary_dims) == (1e6, 2e4, (16, 32, 16))
    config = parse("ZayaForCausalLM", **both | {"layer_types": ["hybrid_sliding"] * 3})
    assert (config.sliding_rope_theta, config.rotary_dims) == (2e4, (32,) * 3)
    experts = config.experts
    assert (experts.choices, experts.router_size, experts.layers) == (17, 256, (0, 1, 2))
    # Of queries and keys twice, and a half of the values, in all layers.
    assert config.recurrence.state_bytes == 4 * 3 * (2 * 6 * 32 + 32)


def test_layers_of_inkling_2():
    config, net = (parsed := parse("Inkling2LoopForCausalLM")), parsed.mixtures
    assert (config.vocab_size, config.embedded_ids, config.rotary_dims) == (90, 100, (0,) * 3)
    assert config.layer_runs == config.cache_layers == (0, 1, 1, 1, 2)
    assert [config.cache_layer(run) for run in range(5)] == [*range(5)]
    assert config.sliding_windows == (1024, 0, 1024)
    assert (net.whole, net.windowed, net.looped, net.layers) == ((1,), (0, 2), (1,), (0, 1, 2, 3, 4))
    assert (config.experts.sigmoid, config.experts.scale, config.swiglu_caps) == (True, 8.0, (4.0, 25.0))
    # Of keys and values, and of what attention and MLP give, the last three in all runs.
    assert config.recurrence.state_bytes == 4 * 5 * 3 * 2 * (2 * 128 + 64)
    changes = {"num_hidden_layers": 24, "n_layers_per_attn_res_block": 6, "layer_types": None}
    whole = parse("Inkling2LoopForCausalLM", **changes, loop_layer_index_start=6, loop_layer_index_end=18)
    assert (whole.mixtures.whole, len(whole.layer_runs)) == ((5, 11, 17, 23), 48)
    section = {"core_start": 6, "core_end": 18, "num_passes": 3, "gate_rank": 64}
    # What the section says counts.
    assert parse("Inkling2LoopForCausalLM", **changes, loop_config=section) == whole
    section = {"core_start": 12, "num_passes": 2, "gate_rank": 7}
    found = parse("Inkling2LoopForCausalLM", **changes, loop_layer_index_end=18, loop_config=section)
    assert (found.loops.first, found.loops.last, found.loops.count, found.mixtures.gate_rank) == (12, 18, 2, 7)
    others = {"sliding_window": 9, "num_local_experts": 12, "sconv_kernel_size": 3, "routed_scaling_factor": 2.5}
    found = parse("Inkling2LoopForCausalLM", **others, intermediate_size=32, model_max_length=77)
    assert (found.sliding_windows, found.mixtures.taps, found.max_position_embeddings) == ((9, 0, 9), 3, 77)
    assert (found.experts.num_experts, found.experts.scale, found.experts.intermediate_size) == (12, 2.5, 32)
    same = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 128, "scoring_func": "sigmoid"}
    assert parse("Inkling2LoopForCausalLM", **same) == config


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"swa_num_attention_heads": 8}, "swa_num_attention_heads other than num_attention_heads is not supported"),
        ({"swa_num_key_value_heads": 4}, "swa_num_key_value_heads other than num_key_value_heads is not supported"),
        ({"swa_head_dim": 64}, "swa_head_dim other than head_dim is not supported"),
        ({"swa_head_dim": "128"}, "swa_head_dim is '128'; expected an integer"),
        ({"head_dim": 24}, "head_dim is 24; expected a multiple of 16"),
        ({"hidden_size": 72}, "hidden_size is 72; expected a multiple of 16"),
        ({"layer_types": ["hybrid"] * 3}, "layer_types without hybrid or hybrid_sliding are not supported"),
        ({"layer_types": ["hybrid_sliding"] * 3}, "layer_types without hybrid or hybrid_sliding are not supported"),
        # The first layer reads the embedding: of its kind there has to be another one.
        (
            {"layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding"]},
            "layer_types without hybrid or hybrid_sliding are not supported",
        ),
        ({"layer_types": ["hybrid", "hybrid_sliding", "full_attention"]}, "full_attention"),
        ({"n_layers_per_attn_res_block": 2}, "loop_layer_index_start is 1; expected a multiple of n_layers"),
        (
            {"n_layers_per_attn_res_block": 2, "loop_layer_index_start": 2, "loop_layer_index_end": 3},
            "loop_layer_index_end is 3; expected a multiple of n_layers_per_attn_res_block, 2",
        ),
        ({"n_layers_per_attn_res_block": 4}, "n_layers_per_attn_res_block is 4; expected an integer from 1 to 3"),
        ({"loop_layer_index_start": 0}, "loop_layer_index_start is 0; expected an integer from 1 to 2"),
        ({"loop_layer_index_end": 1}, "loop_layer_index_end is 1; expected an integer from 2 to 3"),
        ({"loop_layer_index_end": 4}, "loop_layer_index_end is 4; expected an integer from 2 to 3"),
        ({"loop_num_passes": 1}, "loop_num_passes 1 is not supported"),
        ({"loop_num_passes": 0}, "loop_num_passes is 0; expected"),
        ({"loop_config": {"num_passes": 1}}, "loop_num_passes 1 is not supported"),
        ({"loop_config": {"core_end": 9}}, "loop_layer_index_end is 9; expected an integer from 2 to 3"),
        ({"loop_gate_rank": 0}, "loop_gate_rank is 0"),
        ({"unpadded_vocab_size": 101}, "unpadded_vocab_size is 101; expected at most vocab_size, 100"),
        ({"unpadded_vocab_size": 0}, "unpadded_vocab_size is 0"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ({"conv_kernel_size": 1}, "conv_kernel_size is 1"),
        ({"qk_l2_clip_threshold": 0}, "qk_l2_clip_threshold is 0"),
        ({"mlp_gate_softcap": 0}, "mlp_gate_softcap is 0"),
        ({"sliding_window_size": None}, "sliding_window_size is missing"),
    ],
)
def test_what_inkling_2_cannot_be_is_refused(changes, reason):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=re.escape(reason)) as caught:
        parse("Inkling2LoopForCausalLM", **changes)
    assert "config.json: " in str(caught.value) and "\n" not in str(caught.value)


def test_layers_of_flint_and_kolibri():
    config = parse("FlintForCausalLM", num_hidden_layers=9)
    assert config.sliding_windows == (0, 0, 513, 513, 513, 0, 513, 513, 0)
    assert [dim > 0 for dim in config.rotary_dims] == [window > 0 for window in config.sliding_windows]
    assert (config.experts.layers, config.sinks, config.experts.sigmoid) == ((*range(2, 9),), True, True)
    config = parse("Kolibri1ForCausalLM", num_hidden_layers=6)
    assert config.sliding_windows == (513, 513, 513, 513, 0, 513)
    assert [dim > 0 for dim in config.rotary_dims] == [window > 0 for window in config.sliding_windows]
    full = ["full_attention"] * 6
    config = parse("Kolibri1ForCausalLM", num_hidden_layers=6, sliding_window=None, layer_types=full)
    assert (config.sliding_windows, min(config.rotary_dims) > 0) == ((0,) * 6, True)


def test_layers_of_lfm3():
    config = parse("Lfm3ForCausalLM", num_hidden_layers=6)
    assert (config.conv_layers, config.sliding_windows) == ((0, 1, 3, 5), (7, 7, 0, 7, 256, 7))
    assert (config.rotary_dims, config.rope_theta, config.sliding_rope_theta) == ((0, 0, 16, 0, 16, 0), 1e6, 1e4)
    assert (config.rope_scaling.rope_type, config.rope_scaling.rotated) == ("proportional", 0.5)
    kinds = ["sliding_attention", "full_attention", "conv"]
    assert parse("Lfm3ForCausalLM", layer_types=kinds, sliding_window=9).sliding_windows == (9, 0, 7)
    ropes = {"sliding_attention": {"rope_theta": 5e3}, "full_attention": {"rope_theta": 2e6}}
    config = parse("Lfm3ForCausalLM", rope_parameters=ropes)
    assert (config.rope_theta, config.rope_scaling, config.sliding_rope_theta) == (2e6, None, 5e3)


def test_width_of_the_mlp_of_lfm2():
    """The numbers of the published models' files, and of their tensors."""
    for size, inner in ((6656, 4608), (10240, 6912), (12288, 8192)):
        assert parse("Lfm2ForCausalLM", block_ff_dim=size, intermediate_size=7).intermediate_size == inner
    assert parse("Lfm2ForCausalLM", intermediate_size=96, block_auto_adjust_ff_dim=False).intermediate_size == 96
    assert parse("Lfm2ForCausalLM", intermediate_size=96, block_ffn_dim_multiplier=None).intermediate_size == 64
    changes = {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 50}
    assert parse("Lfm2ForCausalLM", intermediate_size=96, **changes).intermediate_size == 100


def test_architecture_from_model_type_alone():
    raw = {**raw_config(), "model_type": "qwen2", "architectures": None}
    assert parse_config(raw, "config.json").architecture == "Qwen2ForCausalLM"


def test_baichuan_is_told_apart_by_what_its_files_say():
    assert parse("BaichuanForCausalLM").alibi_slopes
    assert not parse("BaichuanForCausalLM", max_position_embeddings=4096).alibi_slopes
    assert parse("BaichuanForCausalLM", max_position_embeddings=2048).max_position_embeddings == 2048
    assert [parse("BaichuanForCausalLM", vocab_size=size).unit_outputs for size in (64000, 125696)] == [False, True]
    assert parse("BaichuanForCausalLM", z_loss_weight=0).unit_outputs


def test_qwen_1_grows_beyond_its_training_length_only_as_its_file_asks():
    assert parse("QWenLMHeadModel", use_dynamic_ntk=False, use_logn_attn=False).rope_scaling is None
    config = parse("QWenLMHeadModel", seq_length=32, intermediate_size=90)
    assert (config.intermediate_size, config.head_dim, config.log_temperature_length) == (45, 128, 32)
    assert [angle_set(config, length) for length in (1, 32, 33, 64, 65, 128, 129)] == [0, 0, 1, 1, 2, 2, 3]


def test_chatglm_has_a_head_of_keys_for_each_of_queries_unless_its_file_groups_them():
    assert parse("ChatGLMModel").num_key_value_heads == 4
    config = parse("ChatGLMModel", multi_query_attention=True, rope_ratio=500)
    assert (config.num_key_value_heads, config.rope_theta, config.rotary_dim) == (2, 5e6, 64)


@pytest.mark.parametrize("ids", [None, 2, [9, 4, 7], []])
def test_token_ids_may_be_one_several_or_none(ids):
    assert parse(bos_token_id=ids, eos_token_id=ids) == parse()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": None}},
    ],
)
def test_rope_keys_of_both_transformers_generations(rope):
    config = parse(**rope)
    assert config.rope_theta == 5e5
    assert config.rope_scaling is not None
    assert (config.rope_scaling.rope_type, config.rope_scaling.factor) == ("linear", 2.0)


def test_plain_rope_in_a_scaling_section():
    config = parse(rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert config.rope_scaling is None
    assert config.rope_theta == 1e6


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ["MambaForCausalLM", "Supported families"]),
        ({"architectures": None, "model_type": "mamba"}, ["mamba", "Supported families"]),
        ({"model_type": "mllama"}, ["mllama", "LlamaForCausalLM"]),
        ({"hidden_act": "xielu"}, ["xielu", "silu", "gelu"]),
        ({"hadamard_config": {"block": 128}}, ["hadamard_config is not supported"]),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ["bitsandbytes", "unquantized", "gptq, awq"]),
        ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, ["mrope", "longrope"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["differs between layers"]),
    ],
)
def test_unsupported_is_named_with_what_is_supported(changes, names):
    with pytest.raises(UnsupportedModelError) as caught:
        parse(**changes)
    message = str(caught.value)
    assert "\n" not in message
    assert [name for name in ["config.json", *names] if name not in message] == []


def test_unsupported_layer_type():
    with pytest.raises(UnsupportedModelError, match="chunked"):
        parse("Qwen3ForCausalLM", layer_types=["full_attention", "chunked_attention", "full_attention"])


YARN = {"rope_type": "yarn", "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ESSENTIALS for value in (None, 0, -1, 1 << 40, True, 64.0, "64", [64], {})),
        *(("num_key_value_heads", value) for value in (0, 3, 8, "2", False)),
        *(("head_dim", value) for value in (0, 2, 7, -8, 1 << 20, "16")),
        *(("rms_norm_eps", value) for value in (0, -1e-6, float("nan"), float("inf"), 2, "1e-6", True, None)),
        *(("max_position_embeddings", value) for value in (0, 1 << 40, None, 10**400)),
        *(("vocab_size", value) for value in ((1 << 24) + 1, 10**400)),
        *(("eos_token_id", value) for value in (-1, "2", [1, -1], [True], 1 << 30, 2.0)),
        *(("bos_token_id", value) for value in (-1, "1", {})),
        *(("tie_word_embeddings", value) for value in (1, "true", [])),
        *(("rope_theta", value) for value in (0, 1, -10, float("nan"), float("inf"), "1e4", True, 10**400)),
        *(("rope_scaling", value) for value in ("linear", [1], 2)),
        ("hidden_act", 3),
        ("hidden_size", 66),
        ("quantization_config", "gptq"),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", []),
        ("architectures", [3]),
        ("model_type", 3),
    ],
)
def test_absurd_values_are_refused_by_name(key, value):
    with pytest.raises(CheckpointError) as caught:
        parse(**{key: value})
    message = str(caught.value)
    assert key in message
    assert "config.json" in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "dynamic", "factor": float("nan")}, "factor"),
        ({"rope_type": 3, "factor": 2.0}, "rope_type"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
        ({**LLAMA3, "original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        ({**YARN, "beta_fast": -1}, "beta_fast"),
        ({**YARN, "attention_factor": 0}, "attention_factor"),
        ({**YARN, "truncate": "no"}, "truncate"),
        ({**YARN, "original_max_position_embeddings": 2.5}, "original_max_position_embeddings"),
        ({**LONGROPE, "short_factor": None}, "short_factor"),
        ({**LONGROPE, "short_factor": [1.0] * 7}, "short_factor"),
        ({**LONGROPE, "long_factor": [1.0] * 7 + ["1"]}, "long_factor"),
        ({**LONGROPE, "long_factor": [1.0] * 7 + [0]}, "long_factor"),
        ({**LONGROPE, "long_factor": 2.0}, "long_factor"),
    ],
)
def test_absurd_rope_values_are_refused_by_name(scaling, key):
    with pytest.raises(CheckpointError, match=rf"config\.json: rope_scaling: {key} is"):
        parse(rope_scaling=scaling)


def test_a_part_of_each_head_is_rotated():
    assert parse().rotary_dims == (16,) * 3
    phi = parse("Phi3ForCausalLM", partial_rotary_factor=0.75)
    assert (phi.rotary_dims, phi.rotary_dim) == ((12,) * 3, 12)
    section = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert parse("Phi3ForCausalLM", rope_parameters=section).rotary_dim == 8
    for factor in (0, 0.1, 0.2, -1, 2, "0.5"):
        with pytest.raises(CheckpointError, match="partial_rotary_factor"):
            parse("Phi3ForCausalLM", partial_rotary_factor=factor)


def test_layers_without_rotation():
    assert parse("SmolLM3ForCausalLM").rotary_dims == (16, 16, 16)
    assert parse("SmolLM3ForCausalLM", no_rope_layer_interval=2).rotary_dims == (16, 0, 16)
    assert parse("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 0, 1]).rotary_dims == (0, 16, 0)
    assert parse("SmolLM3ForCausalLM", no_rope_layers=[0, 0, 0]).rotary_dim == 0
    windowed = {"use_sliding_window": True, "sliding_window": 7, "no_rope_layers": [1, 0, 1]}
    assert parse("SmolLM3ForCausalLM", **windowed).sliding_windows == (0, 7, 0)
    assert parse("SmolLM3ForCausalLM", **windowed, layer_types=["full_attention"] * 3).sliding_windows == (0, 0, 0)
    for flags in ([1, 0], [1, 0, 2], [1, 0, "1"], 3):
        with pytest.raises(CheckpointError, match="no_rope_layers"):
            parse("SmolLM3ForCausalLM", no_rope_layers=flags)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 3}, "sliding_window"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
        ({"use_sliding_window": "yes"}, "use_sliding_window"),
        ({"max_window_layers": -1}, "max_window_layers"),
    ],
)
def test_contradicting_windows_are_refused(changes, key):
    with pytest.raises(CheckpointError, match=key):
        parse("Qwen2ForCausalLM", **changes)


def test_long_values_are_cut_in_messages():
    with pytest.raises(CheckpointError) as caught:
        parse(hidden_size="\x1b[31m\n" + "x" * 10_000)
    assert len(str(caught.value)) < 300
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "hidden_size.*twice"),
    ],
)
def test_damaged_files(tmp_path, content, reason):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_in_its_place(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        read_config(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_config(tmp_path)


@pytest.mark.live
@pytest.mark.parametrize("architecture", OF_TRANSFORMERS)
def test_defaults_equal_transformers(architecture, tmp_path):
    """A file of nothing but sizes means what transformers makes of it, and what it then writes reads back so."""
    transformers = pytest.importorskip("transformers")
    family = FAMILIES[architecture]
    # Heads enough for any number of key/value heads, and wide enough for what is rotated of each.
    heads = math.lcm(32, family.defaults.get("num_key_value_heads", 1))
    sizes = {**ESSENTIALS, "num_attention_heads": heads, "hidden_size": heads * 64}
    sizes |= {"embedding_size": sizes["hidden_size"]} if "embedding_size" in family.defaults else {}
    sizes |= {"vocab_size": 262144} if "hidden_size_per_layer_input" in family.defaults else {}
    # Those of layers with a window are the others'.
    sizes |= {"swa_num_attention_heads": heads} if "sliding_window_size" in family.defaults else {}
    needed = SOME_ATTENTION if SOME_ATTENTION.keys() <= family.defaults.keys() else NEEDED.get(architecture, {})
    sizes = {**needed, **sizes}
    raw = {"architectures": [architecture], **{family.names.get(key, key): value for key, value in sizes.items()}}
    transformers.AutoConfig.for_model(family.model_type, **raw).save_pretrained(tmp_path)
    assert read_config(tmp_path / "config.json") == parse_config(raw, "config.json")

    written = json.loads((tmp_path / "config.json").read_text())
    assert {*family.defaults, *family.names.values()} - written.keys() <= OLDER
    given = {*ESSENTIALS, *NEEDED.get(architecture, {})}
    # A window that is not used is written as null or 0, and a section has more than what is read of it.
    compared = {
        key
        for key, value in family.defaults.items()
        if type(value) is not dict and written.get(key) not in (None, 0) and key not in given
    }
    assert {key: family.defaults[key] for key in compared} == {key: written[key] for key in compared}


@pytest.mark.live
def test_defaults_of_inkling_2_equal_transformers():
    """Also of what a small model has to say."""
    theirs = pytest.importorskip("transformers").AutoConfig.for_model("inkling2_loop_text").to_dict()
    defaults = FAMILIES["Inkling2LoopForCausalLM"].defaults
    assert defaults == {key: theirs[key] for key in defaults}


@pytest.mark.live
@pytest.mark.parametrize("architecture", OF_DENSE)
@pytest.mark.parametrize("switches", [{}, {"attention_bias": True, "mlp_bias": True}])
def test_parameters_equal_transformers(architecture, switches):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    import transformers_models  # noqa: F401 - it lists classes that transformers does not

    family = FAMILIES[architecture]
    padding = int("Roberta" in architecture or architecture == "MPNetModel")
    raw = raw_config(architecture, pad_token_id=padding, rotary_dim=8, **SOME_ATTENTION, **switches)
    # transformers derives it of every other family.
    raw |= {"attention_bias": False} if architecture in UNBIASED else {}
    raw |= {"head_dim": 16} if architecture in ("MinistralForCausalLM", "HunYuanDenseV1ForCausalLM") else {}
    their_config = transformers.AutoConfig.for_model(family.model_type, **raw)
    config = parse_config(raw, "config.json")
    auto = transformers.AutoModelForMaskedLM if config.bidirectional else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(their_config)
    buffers = [name for name, _ in model.named_buffers() if name.endswith("layer_scalar")]
    names = {*buffers, *(name for name, _ in model.named_parameters(remove_duplicate=not config.bidirectional))}
    if config.bidirectional:  # The head that guesses masked tokens is left out.
        names = {
            name
            for name in names
            if not name.startswith(("cls.", "lm_head.", "head.", "decoder.", "vocab_", "generator_"))
        }
    shapes = expected_shapes(config)
    # A table with the first row of another one added is two of theirs.
    wholes = [part for name, _ in shapes for part in whole_and_part(name)[0].replace("^", ".weight^").split("^")]
    ours = {re.sub(r"\b[kv]_b_proj\.\d+", "kv_b_proj", name) for name in wholes}
    assert {name.removesuffix(".weight") if name.endswith(WITHOUT_ENDING) else name for name in ours} == names


@pytest.mark.live
def test_a_file_that_transformers_wrote_reads_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen3Config(
        **ESSENTIALS, num_key_value_heads=2, head_dim=32, use_sliding_window=True, sliding_window=9,
        max_window_layers=2, architectures=["Qwen3ForCausalLM"],
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
    )  # fmt: skip
    theirs.save_pretrained(tmp_path)
    assert "rope_parameters" in json.loads((tmp_path / "config.json").read_text())
    ours = read_config(tmp_path / "config.json")
    assert ours.head_dim == 32
    assert ours.sliding_windows == (0, 0, 9)
    assert ours.rope_theta == 1e6
    assert ours.rope_scaling is not None
    assert ours.rope_scaling.original_max_position_embeddings == 32768
