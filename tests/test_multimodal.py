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
from tinychat.models.architectures import parse_config
from tinychat.models.multimodal import WRAPPERS
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
GEMMA4_VISION = VISION | {"num_key_value_heads": 2, "head_dim": 16}
APERTUS_VISION = {"codebook_size": 8, "embed_dim": 8, "latent_channels": 8, "base_channels": 32}
APERTUS_OTHERS = {
    "audio_config": {"model_type": "wavtokenizer_encoder", "codebook_size": 8},
    "image_token_offset": 517,
    "audio_token_offset": 525,
}
# Of each wrapper: its model_type, what its text model has besides sizes, what sees images, and more that it may need.
CASES = {
    "Apertus1p5ForConditionalGeneration": (
        "apertus1p5",
        {"vocab_size": 600, "output_vocab_size": 517, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        APERTUS_VISION | {"num_res_blocks": 1, "channel_multiplier": [1, 1]},
        APERTUS_OTHERS,
    ),
    "Gemma3ForConditionalGeneration": ("gemma3", {"sliding_window": 40, "rope_local_base_freq": 5e3}, VISION),
    "Gemma3nForConditionalGeneration": ("gemma3n", GEMMA3N, {"architecture": "mobilenetv5_300m_enc"}),
    "Gemma4ForConditionalGeneration": ("gemma4", GEMMA4, GEMMA4_VISION),
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
    ),
    "Qwen3VLMoeForConditionalGeneration": (
        "qwen3_vl_moe",
        {"rope_parameters": MROPE, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
    ),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", QWEN3_5, QWEN_VISION),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe", QWEN3_5_MOE, QWEN_VISION),
}


def wrapped(variant, folder):
    """Write a variant by itself, and as the text model of Gemma 3 or Mistral 3; return both folders."""
    wrapper = "Gemma3" if variant.startswith("gemma") else "Mistral3"
    plain = families.write_checkpoint(families.BY_NAME[variant], folder / "plain")
    both = families.write_checkpoint(families.BY_NAME[variant], folder / "both")
    for file in both.glob("*.safetensors"):
        save_file({f"language_model.{name}": values for name, values in load_file(file).items()}, file)
    index = both / "model.safetensors.index.json"
    if index.exists():
        known = json.loads(index.read_text())["weight_map"]
        index.write_text(json.dumps({"weight_map": {f"language_model.{name}": file for name, file in known.items()}}))
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


def test_a_line_says_that_images_are_passed_over(tmp_path):
    plain, both = wrapped("gemma3", tmp_path)
    made = tinychat.convert(both, tmp_path / "model", quant="f32")
    assert code_lines(made) == ["text only: what Gemma3ForConditionalGeneration has for images is passed over"]
    assert code_lines(tinychat.convert(plain, tmp_path / "other", quant="f32")) == []


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_the_ends_of_a_reply_may_stand_in_either_place(place, tmp_path):
    inside = {"eos_token_id": 7} if place == "inside" else {"eos_token_id": 9}
    outside = {"eos_token_id": 7} if place == "outside" else {}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": inside, **outside}))
    tokenizer = SimpleNamespace(eos_id=None, added_tokens={})
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


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_text_alone_runs_as_in_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    import transformers_models

    if case.startswith("Gemma3n"):
        pytest.importorskip("timm", reason="what sees images in Gemma 3n is of another package")
    architecture, (model_type, text, vision, *more) = case.partition(" ")[0], CASES[case]
    sections = {"text_config": {**SIZES, **text}, "vision_config": vision}
    config = transformers.AutoConfig.for_model(model_type, **sections, **dict(*more))
    torch.manual_seed(1)
    theirs = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1.5)
    theirs.save_pretrained(tmp_path / "checkpoint")
    families.write_tokenizer(tmp_path / "checkpoint", SIZES["vocab_size"])
    ids = families.make_ids(families.BY_NAME["llama3"])
    model = tinychat.load(tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32"), context=256)
    for length in (families.SHORT, families.LONG):
        expected = transformers_models.logits(theirs, ids[:length])
        worst = np.abs(model.logits(ids[:length]) - expected).max() / expected.std()
        assert worst < 1e-3
