"""Text models inside multimodal ones: their configuration and tensors are found, and compute what they do alone."""

import json
from types import SimpleNamespace

import families
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from variants.common import DELTA_NET

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import check_tensors
from tinychat.conversion.source import Source
from tinychat.models.architectures import linears, norms, parse_config
from tinychat.models.multimodal import ALSO_CALLED, WRAPPERS
from tinychat.store.local import code_lines
from tinychat.text.stop import stop_sources

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 517,
    "max_position_embeddings": 256,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MINISTRAL = {
    "model_type": "ministral3",
    "sliding_window": None,
    "rope_parameters": families.BY_NAME["ministral3"].config["rope_parameters"],
}
QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 96}
MROPE = {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 1e6}
QWEN3_5 = DELTA_NET | {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": MROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
}
QWEN3_5_MOE = QWEN3_5 | {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
GEMMA4_UNIFIED = {"sliding_window": 40, "global_head_dim": 40, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA4 = GEMMA4_UNIFIED | {"hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 517}
GEMMA3N = {
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 500,
    "laurel_rank": 8,
}
EMBEDDING_GEMMA2 = GEMMA4_UNIFIED | {"hidden_size_per_layer_input": 24, "embedding_dim": 136, "pad_token_id": 0}
GEMMA4_VISION = VISION | {"num_key_value_heads": 2, "head_dim": 16}
APERTUS_VISION = {"codebook_size": 8, "embed_dim": 8, "latent_channels": 8, "base_channels": 32}
APERTUS_OTHERS = {
    "audio_config": {"model_type": "wavtokenizer_encoder", "codebook_size": 8},
    "image_token_offset": 517,
    "audio_token_offset": 525,
}
SIGLIP = VISION | {"model_type": "siglip_vision_model"}
CLIP = VISION | {"model_type": "clip_vision_model"}
SAM = VISION | {
    "model_type": "sam_vision_model",
    "image_size": 64,
    "patch_size": 16,
    "output_channels": 32,
    "global_attn_indexes": [0],
    "mlp_dim": 48,
}
PERCEIVER = {
    "hidden_size": 96,
    "resampler_n_latents": 4,
    "resampler_depth": 1,
    "resampler_n_heads": 2,
    "num_key_value_heads": 1,
    "resampler_head_dim": 8,
}
WINDOWED = {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]}
# Half of a head of 24 is rotated.
GLM_ROPE = {"rope_type": "default", "mrope_section": [2, 2, 2], "partial_rotary_factor": 0.5, "rope_theta": 1e4}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
NEMOTRON = {
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "moe", "attention", "mlp"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "moe_shared_expert_intermediate_size": 48,
}
RADIO = VISION | {"image_size": 32, "patch_size": 16, "max_img_size": 64, "video_temporal_patch_size": 2}
KIMI = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
INKLING2 = {
    "num_hidden_layers": 4,
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
    "head_dim": 32,
    "sliding_window_size": 40,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 32,
    "unpadded_vocab_size": 517,
    "vocab_size": 520,
    "d_rel": 8,
    "rel_extent": 50,
    "log_scaling_n_floor": 30,
    "n_layers_per_attn_res_block": 1,
    "loop_config": {"core_start": 1, "core_end": 3, "num_passes": 3, "gate_rank": 16},
    "eos_token_id": 2,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
}
WHISPER = {"d_model": 32, "encoder_ffn_dim": 48, "encoder_layers": 1, "encoder_attention_heads": 2, "num_mel_bins": 16}
PHI4_SOUND = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_blocks": 1,
    "num_attention_heads": 2,
    "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32,
    "nemo_conv_channels": 32,
    "audio_token_id": 516,
}
VOXTRAL_SOUND = VISION | {"intermediate_size": 128, "num_mel_bins": 16}
OMNI_SOUND = WHISPER | {"output_dim": 96}
# Whose logits transformers multiplies where the text model is alone, as its makers do, and not inside of these.
UNSCALED = ("AyaVisionForConditionalGeneration", "Cohere2VisionForConditionalGeneration")
# Their files have no section for it.
FLAT = ("Phi4MultimodalForCausalLM",)
# They hold the model that writes beside those that speak, which are not built here.
SPEAKING = ("Qwen2_5OmniForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration")
# Of each wrapper: its model_type, what its text model has besides sizes, what sees images, and more that it may need.
CASES = {
    "Apertus1p5ForConditionalGeneration": (
        "apertus1p5",
        {"vocab_size": 600, "output_vocab_size": 517, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        APERTUS_VISION | {"num_res_blocks": 1, "channel_multiplier": [1, 1]},
        APERTUS_OTHERS,
    ),
    "CohereCompassForConditionalGeneration": (
        "cohere_compass",
        families.BY_NAME["cohere-compass"].config | {"pad_token_id": None},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
    ),
    "EmbeddingGemma2Model": ("embedding_gemma2", EMBEDDING_GEMMA2, GEMMA4_VISION),
    "Gemma3ForConditionalGeneration": (
        "gemma3",
        {"sliding_window": 40, "rope_local_base_freq": 5e3},
        VISION,
        {"image_token_id": 7},
    ),
    "Gemma3nForConditionalGeneration": ("gemma3n", GEMMA3N, {"architecture": "mobilenetv5_300m_enc"}),
    "Gemma4ForConditionalGeneration": ("gemma4", GEMMA4, GEMMA4_VISION, {"image_token_id": 7}),
    "Gemma4UnifiedForConditionalGeneration": ("gemma4_unified", GEMMA4_UNIFIED, {}),
    "Mistral3ForConditionalGeneration": (
        "mistral3",
        {"model_type": "mistral", "rope_theta": 1e5},
        VISION | {"head_dim": 16},
    ),
    "Mistral3ForConditionalGeneration of Ministral 3": ("mistral3", MINISTRAL, VISION | {"head_dim": 16}),
    "LlavaForConditionalGeneration": ("llava", {"model_type": "llama"}, VISION | {"model_type": "clip_vision_model"}),
    "InternVLForConditionalGeneration": (
        "internvl",
        {"model_type": "qwen2"},
        VISION | {"image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "MuseGlimmerForConditionalGeneration": (
        "muse_glimmer",
        {"head_dim": 32, "sliding_window": 40, "bos_token_id": 1, "eos_token_id": 2},
        {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2},
        {"out_hidden_size": 128, "projector_hidden_size": 32},
    ),
    "Lfm2VlForConditionalGeneration": (
        "lfm2_vl",
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        {"model_type": "siglip2_vision_model", **VISION},
    ),
    "Lfm3VlForConditionalGeneration": (
        "lfm3_vl",
        {"model_type": "lfm3", "layer_types": ["conv", "full_attention"], "pad_token_id": 0, "eos_token_id": 2},
        VISION | {"num_key_value_heads": 1, "layer_types": ["full_attention"]},
    ),
    "Qwen2VLForConditionalGeneration": (
        "qwen2_vl",
        {"rope_scaling": MROPE},
        {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 96},
    ),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", {"rope_scaling": MROPE}, QWEN_VISION),
    "Qwen3VLForConditionalGeneration": (
        "qwen3_vl",
        {"rope_parameters": MROPE},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
        {"image_token_id": 7},
    ),
    "Qwen3VLForConditionalGeneration yarn": (
        "qwen3_vl",
        {"rope_parameters": MROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
        {"image_token_id": 7},
    ),
    "Qwen3VLMoeForConditionalGeneration": (
        "qwen3_vl_moe",
        {"rope_parameters": MROPE, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
        {"image_token_id": 7},
    ),
    "AyaVisionForConditionalGeneration": ("aya_vision", {"model_type": "cohere2", **WINDOWED}, SIGLIP),
    "Cohere2VisionForConditionalGeneration": ("cohere2_vision", {"model_type": "cohere2", **WINDOWED}, SIGLIP),
    "DeepseekVLForConditionalGeneration": ("deepseek_vl", {"model_type": "llama"}, SIGLIP),
    "DeepseekVLHybridForConditionalGeneration": (
        "deepseek_vl_hybrid",
        {"model_type": "llama"},
        SIGLIP,
        {"high_res_vision_config": SAM},
    ),
    "Ernie4_5_VLMoeForConditionalGeneration": (
        "ernie4_5_vl_moe",
        {
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 5e5},
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": [32, 16],
            "mlp_layer_types": ["sparse", "dense"],
        },
        {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2},
    ),
    "Exaone4_5_ForConditionalGeneration": (
        "exaone4_5",
        {"model_type": "exaone4", **WINDOWED},
        QWEN_VISION | {"num_key_value_heads": 1, "fullatt_block_indexes": [0]},
    ),
    # What sees images in these two is of another package.
    "FastVlmForConditionalGeneration": ("fast_vlm", {"model_type": "qwen2"}, SIGLIP),
    "PerceptionLMForConditionalGeneration": (
        "perception_lm",
        {"model_type": "llama"},
        SIGLIP | {"model_args": {"embed_dim": 32}},
    ),
    "Glm46VForConditionalGeneration": ("glm46v", {"rope_parameters": GLM_ROPE}, QWEN_VISION),
    "Glm4vForConditionalGeneration": ("glm4v", {"rope_parameters": GLM_ROPE}, QWEN_VISION),
    "Glm4vMoeForConditionalGeneration": ("glm4v_moe", {"rope_parameters": GLM_ROPE, **ROUTED}, QWEN_VISION),
    "Granite4VisionForConditionalGeneration": (
        "granite4_vision",
        MULTIPLIERS,
        CLIP | {"hidden_size": 64},
        {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "1/2"},
    ),
    "HyperCLOVAXVisionV2ForConditionalGeneration": (
        "hyperclovax_vision_v2",
        {"model_type": "hyperclovax", **MULTIPLIERS},
        QWEN_VISION | {"model_type": "qwen2_5_vl_vision"},
    ),
    "Idefics2ForConditionalGeneration": (
        "idefics2",
        {"model_type": "mistral", "sliding_window": None},
        VISION,
        {"perceiver_config": PERCEIVER},
    ),
    "Idefics3ForConditionalGeneration": ("idefics3", {"model_type": "llama"}, VISION, {"image_token_id": 7}),
    "Inkling2LoopForConditionalGeneration": (
        "inkling2_loop",
        {**INKLING2, **ROUTED},
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "projection_hidden_dim": 32,
            "posemb_grid_size": 4,
            "text_hidden_size": 96,
        },
    ),
    "Kimi_K25ForConditionalGeneration": (
        "kimi_k25",
        {**KIMI, **ROUTED},
        VISION,
        {"tie_word_embeddings": False},
    ),
    "LlavaNextForConditionalGeneration": ("llava_next", {"model_type": "llama"}, CLIP),
    "LlavaOnevisionForConditionalGeneration": ("llava_onevision", {"model_type": "qwen2"}, SIGLIP),
    "MiniCPMV4_6ForConditionalGeneration": ("minicpmv4_6", QWEN3_5, VISION),
    "MiniCPMV4_7ForConditionalGeneration": ("minicpmv4_7", QWEN3_5, VISION),
    "NemotronH_Omni_Reasoning_V3": (
        "nemotron_h_omni",
        {**NEMOTRON, **ROUTED},
        RADIO,
        {"vision_hidden_size": 32, "projector_hidden_size": 32},
    ),
    "Ovis2ForConditionalGeneration": ("ovis2", {"model_type": "qwen2"}, VISION | {"num_visual_indicator_tokens": 5}),
    "Phi4MultimodalForCausalLM": (
        "phi4_multimodal",
        {"partial_rotary_factor": 0.75, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        VISION | {"crop_size": 28, "image_token_id": 515},
        {"audio_config": PHI4_SOUND},
    ),
    "Qwen2AudioForConditionalGeneration": ("qwen2_audio", {"model_type": "qwen2"}, {}, {"audio_config": WHISPER}),
    "Qwen2_5OmniForConditionalGeneration": (
        "qwen2_5_omni",
        {"rope_scaling": MROPE},
        QWEN_VISION,
        {"audio_config": OMNI_SOUND},
    ),
    "Qwen2_5OmniThinkerForConditionalGeneration": (
        "qwen2_5_omni_thinker",
        {"rope_scaling": MROPE},
        QWEN_VISION,
        {"audio_config": OMNI_SOUND},
    ),
    "Qwen3OmniMoeForConditionalGeneration": (
        "qwen3_omni_moe",
        {"rope_parameters": MROPE, **EXPERTS},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
        {"audio_config": OMNI_SOUND},
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": (
        "qwen3_omni_moe_thinker",
        {"rope_parameters": MROPE, **EXPERTS},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
        {"audio_config": OMNI_SOUND},
    ),
    "SmolVLMForConditionalGeneration": ("smolvlm", {"model_type": "llama"}, VISION, {"image_token_id": 7}),
    "VideoLlama3ForConditionalGeneration": ("video_llama_3", {"model_type": "qwen2"}, VISION),
    "VoxtralForConditionalGeneration": ("voxtral", {"model_type": "llama"}, {}, {"audio_config": VOXTRAL_SOUND}),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", QWEN3_5, QWEN_VISION, {"image_token_id": 7}),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe", QWEN3_5_MOE, QWEN_VISION, {"image_token_id": 7}),
}


def wrapped(variant, folder, prefix="language_model."):
    """Write a variant by itself, and as the text model of Gemma 3 or Mistral 3; return both folders."""
    wrapper = "Gemma3" if variant.startswith("gemma") else "Mistral3"
    plain = families.write_checkpoint(families.BY_NAME[variant], folder / "plain")
    both = families.write_checkpoint(families.BY_NAME[variant], folder / "both")
    for file in both.glob("*.safetensors"):
        save_file({f"{prefix}{name}": values for name, values in load_file(file).items()}, file)
    index = both / "model.safetensors.index.json"
    if index.exists():
        known = json.loads(index.read_text())["weight_map"]
        index.write_text(json.dumps({"weight_map": {f"{prefix}{name}": file for name, file in known.items()}}))
    else:
        tensors = load_file(both / "model.safetensors") | {"vision_tower.weight": np.zeros((3, 5), np.float32)}
        save_file(tensors, both / "model.safetensors")
    text = json.loads((plain / "config.json").read_text())
    del text["architectures"], text["eos_token_id"]
    config = {"architectures": [f"{wrapper}ForConditionalGeneration"], "model_type": wrapper.lower()}
    (both / "config.json").write_text(
        json.dumps(config | {"eos_token_id": [2, 3], "text_config": text, "vision_config": {}})
    )
    return plain, both


@pytest.mark.parametrize("variant", ["gemma3", "mistral", "ministral3"])
def test_a_text_model_inside_another_is_the_one_alone(variant, tmp_path):
    alone, inside = (open_checkpoint(folder) for folder in wrapped(variant, tmp_path))
    assert inside.config == alone.config
    check_tensors(inside)
    for name in families.make_weights(families.BY_NAME[variant]):
        np.testing.assert_array_equal(inside.tensors.read(name), alone.tensors.read(name))


# Those that transformers renames as it reads.
@pytest.mark.parametrize("prefix", ["model.language_model.", "thinker."])
def test_tensors_are_found_by_the_names_of_published_files(prefix, tmp_path):
    alone, inside = (open_checkpoint(folder) for folder in wrapped("mistral", tmp_path, prefix))
    check_tensors(inside)
    for name in families.make_weights(families.BY_NAME["mistral"]):
        np.testing.assert_array_equal(inside.tensors.read(name), alone.tensors.read(name))


def test_linears_of_phi_stand_beside_changes_for_images_and_sound(tmp_path):
    variant = families.BY_NAME["phi3"]
    alone, inside = (families.write_checkpoint(variant, tmp_path / name) for name in ("alone", "inside"))
    (inside / "model.safetensors.index.json").unlink()
    tensors = {}
    for file in inside.glob("*.safetensors"):
        tensors |= {name.replace("_proj.", "_proj.base_layer."): values for name, values in load_file(file).items()}
        file.unlink()
    changes = {name.replace("base_layer", "lora_A.vision"): values for name, values in tensors.items()}
    save_file(changes | tensors, inside / "model.safetensors")
    named = {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}
    (inside / "config.json").write_text(json.dumps(json.loads((alone / "config.json").read_text()) | named))
    found, expected = open_checkpoint(inside), open_checkpoint(alone)
    assert found.config == expected.config
    check_tensors(found)
    for name in families.make_weights(variant):
        np.testing.assert_array_equal(found.tensors.read(name), expected.tensors.read(name))


def test_a_line_says_that_images_are_passed_over(tmp_path):
    plain, both = wrapped("gemma3", tmp_path)
    made = tinychat.convert(both, tmp_path / "model", quant="f32")
    assert code_lines(made) == [
        "text only: what Gemma3ForConditionalGeneration has for images and sound is passed over"
    ]
    assert code_lines(tinychat.convert(plain, tmp_path / "other", quant="f32")) == []


@pytest.mark.parametrize("place", ["outside", "text_config", "llm_config"])
def test_the_ends_of_a_reply_may_stand_in_either_place(place, tmp_path):
    inside = {"eos_token_id": 9 if place == "outside" else 7}
    outside = {"eos_token_id": 7} if place == "outside" else {}
    section = "text_config" if place == "outside" else place
    (tmp_path / "config.json").write_text(json.dumps({section: inside, **outside}))
    tokenizer = SimpleNamespace(eos_id=None, added_tokens={}, thought_marks=None)
    template = SimpleNamespace(render=lambda turns, add_generation_prompt: "")
    assert stop_sources(tmp_path, tokenizer, template) == {7: ["config.json"]}


def test_every_wrapper_is_compared():
    assert set(WRAPPERS) == {name.partition(" ")[0] for name in CASES}


def config_of(wrapper, text, **others):
    return parse_config({"architectures": [wrapper], "text_config": {**SIZES, **text}, **others}, "config.json")


def test_what_a_section_lacks_is_taken_from_the_whole_or_from_transformers_defaults():
    lacking = {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": 24, "vocab_size": None}
    text = {key: value for key, value in {**SIZES, **lacking}.items() if value is not None}
    config = parse_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}, "config.json")
    assert (config.num_attention_heads, config.vocab_size, config.tie_word_embeddings) == (8, 262208, True)
    assert not config_of("Mistral3ForConditionalGeneration", {}).tie_word_embeddings
    assert config_of("Mistral3ForConditionalGeneration", {"tie_word_embeddings": True}).tie_word_embeddings
    assert config_of("LlavaForConditionalGeneration", {}, tie_word_embeddings=True).tie_word_embeddings
    flat = {**SIZES, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "rope_scaling": MROPE | {"type": "mrope"}}
    assert parse_config(flat, "config.json").architecture == "Qwen2ForCausalLM"


def test_the_output_is_tied_where_transformers_ties_it():
    assert config_of("Ovis2ForConditionalGeneration", {"tie_word_embeddings": False}).tie_word_embeddings
    assert not config_of("Ovis2ForConditionalGeneration", {}, tie_word_embeddings=False).tie_word_embeddings
    thinker = "Qwen2_5OmniThinkerForConditionalGeneration"
    assert not config_of(thinker, {"tie_word_embeddings": True}).tie_word_embeddings
    assert config_of(thinker, {}, tie_word_embeddings=True).tie_word_embeddings


@pytest.mark.parametrize("name", ALSO_CALLED)
def test_published_files_may_have_other_names_and_sections(name):
    wrapper = ALSO_CALLED[name]
    text = {**SIZES, **CASES[wrapper][1]}
    sections = {
        "NemotronH_Nano_Omni_Reasoning_V3": {"llm_config": text},
        "Phi4MMForCausalLM": {"model_type": "phi4mm", **text},
        "Qwen2_5OmniModel": {"thinker_config": {"text_config": text}},
    }
    found = parse_config({"architectures": [name], **sections.get(name, {"text_config": text})}, "config.json")
    assert found == config_of(wrapper, CASES[wrapper][1])


def test_older_files_of_ernie_have_numbers_for_text_and_for_images():
    numbers = {
        "moe_num_experts": [6, 6],
        "moe_intermediate_size": [32, 16],
        "moe_layer_start_index": [1, 1],
        "moe_layer_end_index": [1, 1],
        "moe_layer_interval": 1,
        "moe_k": 2,
    }
    flat = {"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_moe_vl"}
    experts = parse_config({**flat, **SIZES, **numbers}, "config.json").experts
    assert (experts.num_experts, experts.intermediate_size, experts.shared_intermediate_size) == (6, 32, 64)
    assert (experts.num_experts_per_tok, experts.layers) == (2, (1,))


def test_the_text_model_of_ernie_is_its_mixture_alone(tmp_path):
    variant = families.BY_NAME["ernie4.5-moe"]
    alone = families.write_checkpoint(variant, tmp_path / "alone")
    inside = families.write_checkpoint(variant, tmp_path / "inside")
    for file in inside.glob("*.safetensors"):
        tensors = load_file(file)
        for name, values in tensors.items():
            if name.endswith("mlp.gate.weight"):
                tensors[name] = np.ascontiguousarray(values.T)
            elif "e_score_correction_bias" in name:
                tensors[name] = np.stack([values.reshape(-1), np.ones_like(values.reshape(-1))])
        save_file(tensors, file)
    text = json.loads((alone / "config.json").read_text()) | {"model_type": "ernie4_5_vl_moe_text"}
    config = {"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "text_config": text}
    (inside / "config.json").write_text(json.dumps(config))
    found, expected = open_checkpoint(inside), open_checkpoint(alone)
    check_tensors(found)
    ours, theirs = Source(found), Source(expected)
    for linear in linears(expected.config):
        for shard in range(linear.shards):
            np.testing.assert_array_equal(ours.weight(linear.name, shard), theirs.weight(linear.name, shard))
    for norm, other in zip(norms(found.config), norms(expected.config), strict=True):
        pairs = zip(norm.sources, other.sources, strict=True)
        for name, their_name in pairs:
            rows = found.tensors.read(f"{name}.weight")
            np.testing.assert_array_equal(rows, expected.tensors.read(f"{their_name}.weight"))


def both_outputs(model, theirs, ids):
    """Return the logits of tinychat and of transformers after token ids, or the vectors of a model that embeds."""
    import torch
    import transformers_models

    if model.writes:
        return model.logits(ids), transformers_models.logits(theirs, ids)
    with torch.no_grad():
        mean = theirs(torch.tensor([ids])).last_hidden_state[0].numpy().mean(axis=0)
    return model.embed([ids])[0], mean / np.linalg.norm(mean)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_text_alone_runs_as_in_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if case.startswith("Gemma3n"):
        pytest.importorskip("timm", reason="what sees images in Gemma 3n is of another package")
    architecture, (model_type, text, vision, *more) = case.partition(" ")[0], CASES[case]
    sections = {"text_config": {**SIZES, **text}, "vision_config": vision, **dict(*more)}
    if architecture in FLAT:
        sections |= sections.pop("text_config")
    if architecture in SPEAKING:
        sections = {"thinker_config": sections, "enable_audio_output": False}
    config = transformers.AutoConfig.for_model(model_type, **sections)
    torch.manual_seed(1)
    theirs = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1.5)
    theirs.save_pretrained(tmp_path / "checkpoint")
    if architecture.startswith("Kimi"):
        # transformers renames the layers of text as it renames those that see images.
        file = tmp_path / "checkpoint" / "model.safetensors"
        save_file({name.replace("model.blocks", "model.layers"): each for name, each in load_file(file).items()}, file)
    families.write_tokenizer(tmp_path / "checkpoint", SIZES["vocab_size"])
    ids = families.make_ids(families.BY_NAME["llama3"])
    model = tinychat.load(tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32"), context=256)
    for length in (families.SHORT, families.LONG):
        found, expected = both_outputs(model, getattr(theirs, "thinker", theirs), ids[:length])
        if architecture in UNSCALED:
            expected = expected * config.text_config.logit_scale
        worst = np.abs(found - expected).max() / expected.std()
        assert worst < 1e-3
