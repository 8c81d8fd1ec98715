"""llama.cpp's names of architectures, keys and tensors, and the changes that its converter makes to each family.

(github.com/ggml-org/llama.cpp: conversion/ has the converters; gguf-py/gguf/constants.py the names.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tinychat.checkpoint import gguf_configs
from tinychat.checkpoint.gguf_configs import Extra
from tinychat.checkpoint.gguf_gemma import (
    embedding_gemma,
    embedding_gemma2,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    gemma4_drafter,
)
from tinychat.checkpoint.gguf_mamba import falcon_h1, jamba, nemotron_h
from tinychat.checkpoint.gguf_values import GgufValues
from tinychat.models.decoder import HEAD_GATES
from tinychat.models.delta_net import DECAYS, GATES, WIDE_DECAYS, WIDE_GATES
from tinychat.models.draft_head import INPUTS
from tinychat.models.drafter import STATE
from tinychat.models.mamba import STEPS

# Most architectures' names of norms, and of what else has one number for each channel.
NORMS = {
    "embed_norm": "token_embd_norm",
    "input_layernorm": "attn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_gains": "attn_q_norm",
    "k_gains": "attn_k_norm",
    "q_a_norm": "attn_q_a_norm",
    "kv_a_norm": "attn_kv_a_norm",
    "sinks": "attn_sinks",
    "conv_taps": "shortconv.conv",
    "delta_taps": "ssm_conv1d",
    "delta_norm": "ssm_norm",
    "mamba_taps": "ssm_conv1d",
    "mamba_norm": "ssm_norm",
    "mamba_steps_norm": "ssm_dt_norm",
    "mamba_keys_norm": "ssm_b_norm",
    "mamba_queries_norm": "ssm_c_norm",
    "attn_sub_norm": "attn_sub_norm",
    "ffn_sub_norm": "ffn_sub_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "norm": "output_norm",
}


@dataclass(frozen=True)
class GgufFamily:
    """One architecture of llama.cpp."""

    # Its name in transformers; or a function that chooses one.
    architecture: str | Callable[[GgufValues], str]
    # Whether rows of queries and keys are reordered in the file, so that neighbouring channels are rotated together.
    neighbours: bool = False
    # Adjustments of the family (`checkpoint.adjusted`) that the file has already: "order", "transposed", "offset".
    done: frozenset[str] = frozenset()
    # The same of files of models that also look at images, whose positions have sections.
    done_in_sections: frozenset[str] = frozenset()
    # Keys of its ``config.json`` by the metadata's, beside those that all architectures have; and a function of others.
    keys: Mapping[str, str] = field(default_factory=dict)
    extra: Extra = lambda values: {}
    # Whether a mixture of experts of it is known.
    experts: bool = False
    # Names of norms that differ from `NORMS`; where an MLP beside attention has a norm of its own, both.
    norms: Mapping[str, str] = field(default_factory=dict)
    # The same of linears: the names of their parts.
    linears: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parallel_norms: Mapping[str, str] = field(default_factory=dict)
    # Keys of metadata that list what a checkpoint has as tensors of one number, by the names of norms.
    numbers: Mapping[str, str] = field(default_factory=dict)


_AFTER_ATTENTION = {"post_attention_layernorm": "post_attention_norm"}
_NORMS_BEHIND = {"post_self_attn_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm"}
# Of Gemma 4 and those of its build.
_LAYER_INPUTS = {"layer_scale": "layer_output_scale", "inputs_norm": "per_layer_proj_norm", "input_norm": "post_norm"}
_MLP_OF_EXPERTS, _LOGITS = {"intermediate_size": "expert_feed_forward_length"}, {"logit_scale": "logit_scale"}
_TAPS_APART = "ssm_conv1d_q+ssm_conv1d_k+ssm_conv1d_v"
_ORDERED, _GAINS, _TURNED = (frozenset([each]) for each in ("order", "offset", "transposed"))
FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(
        lambda values: "MixtralForCausalLM" if values.get("expert_count") else "LlamaForCausalLM",
        True,
        experts=True,
    ),
    # The first such models, which llama.cpp knows, have another activation than the one that only others know.
    "bitnet": GgufFamily("BitNetForCausalLM", extra=lambda values: {"hidden_act": "silu"}),
    **dict.fromkeys(("bitnet-b1.58", "bitnet-25"), GgufFamily("BitNetForCausalLM")),
    "exaone": GgufFamily("ExaoneForCausalLM"),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    # Of models that also look at images: positions of three axes are the same in text.
    "qwen2vl": GgufFamily("Qwen2ForCausalLM"),
    "qwen3vl": GgufFamily("Qwen3ForCausalLM"),
    "qwen2moe": GgufFamily("Qwen2MoeForCausalLM", extra=gguf_configs.qwen_moe, experts=True),
    **dict.fromkeys(
        ("qwen3moe", "qwen3vlmoe"), GgufFamily("Qwen3MoeForCausalLM", extra=gguf_configs.qwen_moe, experts=True)
    ),
    "qwen35": GgufFamily("Qwen3_5ForCausalLM", done=_GAINS, extra=gguf_configs.qwen3_5, norms=_AFTER_ATTENTION),
    # The tensors of Qwen3-Next are those of Qwen3.5.
    **dict.fromkeys(
        ("qwen35moe", "qwen3next"),
        GgufFamily(
            "Qwen3_5MoeForCausalLM", done=_GAINS, extra=gguf_configs.qwen3_5_moe, experts=True, norms=_AFTER_ATTENTION
        ),
    ),
    "olmoe": GgufFamily("OlmoeForCausalLM", experts=True),
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        done=_ORDERED,
        keys=_MLP_OF_EXPERTS,
        extra=gguf_configs.gpt_oss,
        experts=True,
        norms=_AFTER_ATTENTION,
    ),
    "lfm2": GgufFamily("Lfm2ForCausalLM", extra=gguf_configs.lfm2, norms={"norm": "token_embd_norm"}),
    "lfm2moe": GgufFamily(
        "Lfm2MoeForCausalLM",
        extra=lambda values: {**gguf_configs.sigmoid_experts(values), **gguf_configs.lfm2(values)},
        experts=True,
        norms={"norm": "token_embd_norm"},
    ),
    "glm4moe": GgufFamily("Glm4MoeForCausalLM", extra=gguf_configs.glm4_moe, experts=True, norms=_AFTER_ATTENTION),
    "hunyuan-dense": GgufFamily("HunYuanDenseV1ForCausalLM"),
    "hunyuan-moe": GgufFamily("HunYuanMoEV1ForCausalLM", experts=True),
    "dots1": GgufFamily(
        "Dots1ForCausalLM",
        extra=lambda values: {**gguf_configs.sigmoid_experts(values), "sliding_window": None},
        experts=True,
    ),
    "bailingmoe2": GgufFamily("BailingMoeV2ForCausalLM", extra=gguf_configs.ling2, experts=True),
    "minimax-m2": GgufFamily("MiniMaxM2ForCausalLM", keys=_MLP_OF_EXPERTS, experts=True),
    "deepseek2": GgufFamily(gguf_configs.deepseek2_architecture, extra=gguf_configs.deepseek2, experts=True),
    "mistral4": GgufFamily("Mistral4ForCausalLM", extra=gguf_configs.mistral4, experts=True),
    "kimi-linear": GgufFamily(
        "KimiLinearForCausalLM",
        extra=gguf_configs.kimi_linear,
        experts=True,
        norms={"delta_taps": _TAPS_APART},
        linears={
            "delta_in_proj": ("attn_q", "attn_k", "attn_v"),
            GATES: ("ssm_f_a", "ssm_beta"),
            DECAYS: ("ssm_f_b",),
            "delta_low_proj": ("ssm_g_a",),
            "delta_gate_proj": ("ssm_g_b",),
            "delta_out_proj": ("attn_output",),
        },
    ),
    "bailingmoe3": GgufFamily(
        "BailingMoeV3ForCausalLM",
        extra=gguf_configs.ling3,
        experts=True,
        norms={"delta_taps": _TAPS_APART},
        linears={
            "delta_in_proj": ("attn_q", "attn_k", "attn_v"),
            GATES: ("ssm_beta",),
            WIDE_DECAYS: ("ssm_f_a",),
            WIDE_GATES: ("ssm_g_a",),
            "delta_out_proj": ("attn_output",),
            HEAD_GATES: ("attn_gate",),
        },
    ),
    "apertus": GgufFamily(
        "ApertusForCausalLM", numbers={"xielu_positive": "xielu.alpha_p", "xielu_negative": "xielu.alpha_n"}
    ),
    "afmoe": GgufFamily("AfmoeForCausalLM", extra=gguf_configs.afmoe, experts=True),
    "muse-glimmer": GgufFamily(
        "MuseGlimmerForCausalLM",
        True,
        done=_GAINS,
        keys={"output_multiplier": "logit_scale", "final_logit_softcapping": "final_logit_softcapping"},
        extra=gguf_configs.muse_glimmer,
    ),
    "smallthinker": GgufFamily("SmallThinkerForCausalLM", extra=gguf_configs.smallthinker, experts=True),
    "laguna": GgufFamily(
        "LagunaForCausalLM",
        extra=gguf_configs.laguna,
        experts=True,
        linears={HEAD_GATES: ("attn_gate",)},
    ),
    "exaone-moe": GgufFamily(
        "ExaoneMoeForCausalLM",
        extra=lambda values: {**gguf_configs.sigmoid_experts(values), **values.windows(4)},
        experts=True,
    ),
    "minicpm3": GgufFamily("MiniCPM3ForCausalLM", extra=gguf_configs.minicpm3),
    "command-r": GgufFamily("CohereForCausalLM", keys=_LOGITS),
    "cohere2": GgufFamily("Cohere2ForCausalLM", keys=_LOGITS, extra=lambda values: values.windows(4)),
    "cohere2moe": GgufFamily("Cohere2MoeForCausalLM", keys=_LOGITS, extra=gguf_configs.cohere2_moe, experts=True),
    "phi3": GgufFamily("Phi3ForCausalLM"),
    "phimoe": GgufFamily("PhiMoEForCausalLM", extra=gguf_configs.phi_moe, experts=True),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", True),
    "gemma": GgufFamily("GemmaForCausalLM", done=_GAINS),
    "gemma2": GgufFamily("Gemma2ForCausalLM", done=_GAINS, extra=gemma2),
    "gemma3": GgufFamily("Gemma3ForCausalLM", done=_GAINS, extra=gemma3),
    "gemma-embedding": GgufFamily("Gemma3ForCausalLM", done=_GAINS, extra=embedding_gemma),
    "bert": GgufFamily(
        lambda values: "BertModel" if "token_types.weight" in values.tensors else "DistilBertModel", norms=_NORMS_BEHIND
    ),
    "nomic-bert": GgufFamily("NomicBertModel", norms=_NORMS_BEHIND),
    "nomic-bert-moe": GgufFamily(
        "NomicBertModel", done=_TURNED, extra=gguf_configs.nomic_moe, experts=True, norms=_NORMS_BEHIND
    ),
    "jina-bert-v2": GgufFamily(
        "JinaBertModel",
        extra=lambda values: {
            "position_embedding_type": "alibi",
            "feed_forward_type": "geglu",
            # The family is no causal one anyway: see `architectures`.
            "is_causal": None,
        },
        norms=_NORMS_BEHIND,
    ),
    # Its adapters are files of their own.
    "jina-bert-v3": GgufFamily("JinaEmbeddingsV3Model", norms=_NORMS_BEHIND),
    "eurobert": GgufFamily("EuroBertModel"),
    "modern-bert": GgufFamily(
        "ModernBertModel",
        # The family is no causal one anyway, and the key would change how windows are counted.
        extra=lambda values: {"local_rope_theta": values.get("rope.freq_base_swa", 1e4), "is_causal": None},
    ),
    "gemma-embedding2": GgufFamily("EmbeddingGemma2TextModel", extra=embedding_gemma2, norms=_LAYER_INPUTS),
    "gemma4": GgufFamily(
        "Gemma4ForCausalLM",
        extra=gemma4,
        experts=True,
        norms={
            **_LAYER_INPUTS,
            "mlp_norm": "post_ffw_norm_1",
            "before_experts": "pre_ffw_norm_2",
            "experts_norm": "post_ffw_norm_2",
        },
    ),
    "gemma4-assistant": GgufFamily(
        "Gemma4AssistantForCausalLM",
        extra=gemma4_drafter,
        norms={"layer_scale": "layer_output_scale"},
        linears={
            "lm_head": ("token_embd",),
            **dict.fromkeys(INPUTS, ("nextn.pre_projection",)),
            STATE: ("nextn.post_projection",),
        },
    ),
    "gemma3n": GgufFamily(
        "Gemma3nForCausalLM",
        extra=gemma3n,
        norms={
            "inputs_norm": "per_layer_proj_norm",
            "input_norm": "post_norm",
            "laurel_norm": "laurel_post_norm",
            "streams_norm": "altup_router_norm",
            "streams_router": "altup_router",
            "predictions": "altup_predict_coef",
            "corrections": "altup_correct_coef",
            "corrected_scale": "altup_correct_scale",
        },
    ),
    "granite": GgufFamily(
        "GraniteForCausalLM", True, extra=lambda values: gguf_configs.multipliers(values, 1.0, 1.0, 1.0)
    ),
    "granitemoe": GgufFamily(
        lambda values: f"GraniteMoe{'Shared' if values.has('ffn_gate_shexp.weight') else ''}ForCausalLM",
        True,
        extra=gguf_configs.granite_moe,
        experts=True,
    ),
    "granitehybrid": GgufFamily(
        lambda values: "BambaForCausalLM" if values.get("rope.scaling.finetuned") else "GraniteMoeHybridForCausalLM",
        True,
        extra=gguf_configs.granite_hybrid,
        experts=True,
    ),
    "jamba": GgufFamily("JambaForCausalLM", extra=jamba, experts=True, linears={STEPS: ("ssm_dt",)}),
    "falcon-h1": GgufFamily("FalconH1ForCausalLM", extra=falcon_h1),
    **dict.fromkeys(
        ("nemotron_h", "nemotron_h_moe"),
        GgufFamily(
            "NemotronHForCausalLM", extra=nemotron_h, experts=True, norms={"post_attention_layernorm": "attn_norm"}
        ),
    ),
    "minicpm": GgufFamily("GraniteForCausalLM", True, extra=gguf_configs.minicpm),
    "olmo2": GgufFamily(
        lambda values: f"Olmo{3 if values.get('attention.sliding_window') else 2}ForCausalLM",
        extra=lambda values: values.windows(4),
    ),
    # llama.cpp has norms without gains by the architecture.
    "olmo": GgufFamily("OlmoForCausalLM", True, keys={"clip_qkv": "attention.clamp_kqv"}),
    "nemotron": GgufFamily("NemotronForCausalLM", done=_GAINS),
    "jais2": GgufFamily("Jais2ForCausalLM"),
    "arcee": GgufFamily("ArceeForCausalLM", True),
    "ernie4_5": GgufFamily("Ernie4_5ForCausalLM", extra=lambda values: {"use_bias": values.has("attn_output.bias")}),
    "ernie4_5-moe": GgufFamily("Ernie4_5_MoeForCausalLM", extra=gguf_configs.ernie4_5_moe, experts=True),
    "seed_oss": GgufFamily("SeedOssForCausalLM", norms=_AFTER_ATTENTION),
    "exaone4": GgufFamily("Exaone4ForCausalLM", extra=lambda values: values.windows(4)),
    "mistral3": GgufFamily(
        lambda values: "Ministral3ForCausalLM" if values.get("attention.temperature_scale") else "LlamaForCausalLM",
        True,
        extra=lambda values: gguf_configs.ministral3(values) if values.get("attention.temperature_scale") else {},
    ),
    "chatglm": GgufFamily(
        lambda values: "ChatGLMModel" if values.has("attn_qkv.weight") else "GlmForCausalLM", extra=gguf_configs.chatglm
    ),
    # llama.cpp rotates sections in halves alone.
    "glm4": GgufFamily("Glm4ForCausalLM", done_in_sections=_ORDERED),
    "internlm2": GgufFamily("LlamaForCausalLM", True),
    "baichuan": GgufFamily("LlamaForCausalLM", True, extra=gguf_configs.baichuan),
    # llama.cpp does neither, and no key has the length from which on.
    "qwen": GgufFamily("QWenLMHeadModel", extra=lambda values: {"use_dynamic_ntk": False, "use_logn_attn": False}),
    "stablelm": GgufFamily("StableLmForCausalLM", extra=gguf_configs.stablelm),
    "starcoder": GgufFamily(
        "GPTBigCodeForCausalLM", extra=lambda values: {"multi_query": values.config.get("num_key_value_heads") == 1}
    ),
    "starcoder2": GgufFamily(
        "Starcoder2ForCausalLM", extra=lambda values: {"use_bias": values.config["attention_bias"]}
    ),
    "phi2": GgufFamily("PhiForCausalLM"),
    "gpt2": GgufFamily("GPT2LMHeadModel", done=_TURNED),
    "gptneox": GgufFamily(
        "GPTNeoXForCausalLM",
        done=_ORDERED,
        extra=lambda values: {"use_parallel_residual": bool(values.get("use_parallel_residual", True))},
    ),
    "falcon": GgufFamily(
        "FalconForCausalLM",
        done=_ORDERED,
        extra=gguf_configs.falcon,
        parallel_norms={"input_layernorm": "attn_norm_2", "post_attention_layernorm": "attn_norm"},
    ),
    "bloom": GgufFamily("BloomForCausalLM", done=_ORDERED),
    "mpt": GgufFamily("MptForCausalLM", extra=gguf_configs.mpt),
}
