"""GGUF files as Ollama's own converter has written them: the same model as llama.cpp's converter makes of it."""

import json
from dataclasses import fields

import encoders
import gguf
import gguf_files
import numpy as np
import pytest
from gguf_files import BY_NAME

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import check_architecture, unpacked
from tinychat.checkpoint.gguf_header import read_beginning
from tinychat.checkpoint.gguf_ollama import in_llama_cpp_form
from tinychat.conversion.convert import check_tensors
from tinychat.conversion.source import Source
from tinychat.models.architectures import linears
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template

U32, F32, BOOL = (gguf.GGUFValueType[name] for name in ("UINT32", "FLOAT32", "BOOL"))


def rewritten(source, target, architecture, keys, tensors, more=(), without=(), tokens=0, embedded=0, last=None):
    """Write a file anew.

    keys, tensors : parts of names, and what stands in their place
    more : keys, values and types; without : keys without the architecture that are left out
    tokens : how many are added to the vocabulary; embedded : the same, with rows of the embedding
    last : what the last token before them is
    """
    reader = gguf.GGUFReader(source)
    plain = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    added = tokens + embedded
    for name, field in reader.fields.items():
        _, is_own, key = name.partition(f"{plain}.")
        if name.startswith("GGUF.") or name == "general.architecture" or (is_own and key in without):
            continue
        value, kind = field.contents(), field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        if last is not None and name == "tokenizer.ggml.tokens":
            value = [*value[:-1], last]
        if name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            value = [*value, *([f"<image{i}>" for i in range(added)] if name.endswith("tokens") else [3] * added)]
        writer.add_key_value(f"{architecture}.{keys.get(key, key)}" if is_own else name, value, kind, sub_type=inner)
    for key, value, kind in more:
        inner = kind if isinstance(value, list) else None
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY if inner else kind, sub_type=inner)
    for tensor in reader.tensors:
        name, data = tensor.name, np.array(tensor.data)
        for old, new in tensors.items():
            name = name.replace(old, new)
        if embedded and name == "token_embd.weight":
            data = np.concatenate([data, data[:embedded]])
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("v.patch_embedding.weight", np.zeros((3, 32), np.float32))
    gguf_files.write(writer)
    return target


# By Ollama's architecture: the variant, keys and tensors by llama.cpp's names, and keys that are added or missing.
CASES = {
    "gptoss": (
        "gpt-oss",
        {},
        {"attn_output": "attn_out", "attn_sinks.weight": "attn_sinks", "post_attention_norm": "ffn_norm"},
        [],
        ["expert_feed_forward_length", "rope.scaling.type"],
    ),
    "mistral3": (
        "ministral3",
        {
            "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
            "attention.temperature_scale": "rope.scaling_beta",
        },
        {},
        [],
        [],
    ),
    "qwen25vl": ("qwen2-tied", {}, {}, [], []),
    "qwen35": (
        "qwen3.5",
        {},
        {"ssm_dt.bias": "ssm_dt"},
        [("qwen35.attention.head_count_kv", [0, 2, 0, 2], U32), ("qwen35.ssm.v_head_reordered", True, BOOL)],
        ["attention.head_count_kv"],
    ),
    "olmo3": ("olmo3", {}, {}, [], []),
    "lfm2": (
        "lfm2",
        {},
        {"token_embd_norm": "output_norm"},
        [("lfm2.feed_forward_length", 999, U32)],
        ["feed_forward_length"],
    ),
    "laguna": (
        "laguna",
        {
            "rope.dimension_count_swa": "rope.swa.dimension_count",
            "rope.freq_base_swa": "rope.swa.freq_base",
            "rope.scaling.yarn_attn_factor": "rope.scaling.attn_factor",
            "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
            "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
        },
        {"attn_gate": "attn_g"},
        [],
        [],
    ),
    "nemotron_h_moe": (
        "nemotron-h-latents",
        {},
        {"ffn_latent_down": "ffn_latent_in", "ffn_latent_up": "ffn_latent_out"},
        [],
        ["moe_latent_size"],
    ),
    "qwen3moe": ("qwen3-moe", {}, {}, [], ["expert_feed_forward_length"]),
    "gemma4": ("gemma4-moe", {}, {"ffn_down_exps.scale": "ffn_gate_inp.per_expert_scale"}, [], []),
}


def same(found, expected):
    """Return whether two values are equal, numbers of float32 included."""
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-6)
    return found == expected


@pytest.mark.parametrize("architecture", CASES)
def test_a_file_is_that_of_llama_cpp(architecture, tmp_path):
    name, keys, tensors, more, without = CASES[architecture]
    plain = gguf_files.write_variant(BY_NAME[name], tmp_path / "plain.gguf")
    theirs = rewritten(plain, tmp_path / "theirs.gguf", architecture, keys, tensors, more, without)
    assert check_architecture(read_beginning(theirs), theirs)
    with unpacked(plain) as first, unpacked(theirs) as second:
        expected, found = open_checkpoint(first), open_checkpoint(second)
        check_tensors(found)
        differing = {
            field.name
            for field in fields(found.config)
            if not same(getattr(found.config, field.name), getattr(expected.config, field.name))
        }
        assert not differing
        for linear in linears(expected.config):
            for shard in range(linear.shards):
                rows = [Source(each).weight(linear.name, shard) for each in (found, expected)]
                np.testing.assert_array_equal(*rows, err_msg=linear.name)


def test_heads_of_glm_4_7_flash_have_their_own_sizes(tmp_path):
    plain = gguf_files.write_variant(BY_NAME["glm4-moe-lite"], tmp_path / "plain.gguf")
    with unpacked(plain) as folder:
        expected = open_checkpoint(folder).config
    more = [
        ("glm4moelite.attention.key_length", expected.latents.query_dim, U32),
        ("glm4moelite.attention.key_length_mla", expected.head_dim, U32),
    ]
    left_out = ["attention.key_length", "attention.key_length_mla"]
    theirs = rewritten(plain, tmp_path / "theirs.gguf", "glm4moelite", {}, {}, more, left_out)
    with unpacked(theirs) as folder:
        assert open_checkpoint(folder).config.latents.query_dim == expected.latents.query_dim


def test_gemma_3_has_its_bases_turns_and_no_tokens_of_images(tmp_path):
    plain = gguf_files.write_variant(BY_NAME["gemma3"], tmp_path / "plain.gguf")
    more = [("gemma3.rope.local.freq_base", 5e3, F32), ("gemma3.context_length", 131072, U32)]
    left_out = ["context_length", "attention.layer_norm_rms_epsilon"]
    keys = {"rope.freq_base": "rope.global.freq_base"}
    last = "<start_of_turn>"
    theirs = rewritten(plain, tmp_path / "theirs.gguf", "gemma3", keys, {}, more, left_out, tokens=2, last=last)
    with unpacked(plain) as first, unpacked(theirs) as second:
        expected, found = open_checkpoint(first).config, open_checkpoint(second).config
        tokenizer = load_tokenizer(second)
        template = load_template(second, tokenizer)
        text = template.render([{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "Hi "}])
    assert (found.sliding_rope_theta, found.rope_theta) == (5e3, expected.rope_theta)
    assert found.rope_scaling == expected.rope_scaling
    assert tokenizer.vocab_size == expected.vocab_size == found.vocab_size
    assert text == "<s><start_of_turn>user\nRhyme.\n\nHi<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize(("layers", "scaling"), [(34, "linear"), (26, None)])
def test_gemma_3_has_its_scaling_and_no_cap_of_logits(layers, scaling):
    metadata = {"general.architecture": "gemma3", "gemma3.block_count": layers, "gemma3.context_length": 8192}
    metadata |= {"gemma3.rope.global.freq_base": 1e6, "gemma3.final_logit_softcapping": 30.0}
    in_llama_cpp_form(metadata, {})
    assert metadata.get("gemma3.rope.scaling.type") == scaling
    assert "gemma3.final_logit_softcapping" not in metadata and "tokenizer.chat_template" not in metadata


def test_rnj_1_has_the_bounds_of_yarn():
    metadata = {"general.architecture": "gemma3", "gemma3.block_count": 32, "gemma3.rope.local.freq_base": 1e4}
    metadata |= {"gemma3.rope.scaling.type": "yarn", "gemma3.rope.scaling.beta_fast": 64.0}
    metadata["gemma3.final_logit_softcapping"] = 30.0
    in_llama_cpp_form(metadata, {})
    assert metadata["gemma3.rope.scaling.yarn_beta_fast"] == metadata["gemma3.final_logit_softcapping"] + 34


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3", "gemma3n"])
def test_texts_of_gemma_begin_without_a_space(name, tmp_path):
    plain = gguf_files.write_variant(BY_NAME[name], tmp_path / "plain.gguf")
    reader = gguf.GGUFReader(plain)
    assert "tokenizer.ggml.add_space_prefix" not in reader.fields
    with unpacked(plain) as folder:
        tokenizer = load_tokenizer(folder)
        assert tokenizer.decode(tokenizer.encode("a"), skip_special=False).endswith("a")
        assert not tokenizer.strips_first_space


def test_all_ends_of_a_file_count_and_those_beyond_the_vocabulary_do_not(tmp_path):
    plain = gguf_files.write_variant(BY_NAME["glm4-moe-lite"], tmp_path / "plain.gguf")
    more = [("tokenizer.ggml.eos_token_ids", [7, 9, -1, 1 << 20], gguf.GGUFValueType.INT32)]
    with unpacked(rewritten(plain, tmp_path / "theirs.gguf", "deepseek2", {}, {}, more)) as folder:
        assert {7, 9} <= {*json.loads((folder / "generation_config.json").read_text())["eos_token_id"]}
        assert max(json.loads((folder / "generation_config.json").read_text())["eos_token_id"]) < 1 << 20


def test_texts_of_gemma_4_begin_with_its_token_whatever_the_file_says(tmp_path):
    plain = gguf_files.write_vocabulary(
        tmp_path / "g.gguf",
        "gemma4",
        ["<pad>", "<eos>", "<bos>", "a"],
        [3, 3, 3, 1],
        bos_token_id=2,
        add_bos_token=False,
    )
    with unpacked(plain) as folder:
        assert load_tokenizer(folder).encode("a") == [2, 3]


def test_gemma_3n_leaves_out_what_has_no_embedding_for_layers(tmp_path):
    plain = gguf_files.write_variant(BY_NAME["gemma3n"], tmp_path / "plain.gguf")
    theirs = rewritten(plain, tmp_path / "theirs.gguf", "gemma3n", {}, {}, embedded=3)
    with unpacked(plain) as first, unpacked(theirs) as second:
        expected, found = open_checkpoint(first), open_checkpoint(second)
        assert found.config == expected.config
        rows = [Source(each).weight("embed_tokens", 0) for each in (found, expected)]
    np.testing.assert_array_equal(*rows)


def test_an_embedding_model_is_not_taken_for_gemma_3(tmp_path, rng):
    layers = {name: rng.standard_normal((96, 96)).astype(np.float32) for name in ("dense_2", "dense_3")}
    variant = encoders.BY_NAME["embedding-gemma"]
    plain = gguf_files.write_variant(variant, tmp_path / "plain.gguf", pooling=1, **layers)
    tensors = {"dense_2": "dense.0", "dense_3": "dense.1", "output_norm": "norm"}
    theirs = rewritten(plain, tmp_path / "theirs.gguf", "gemma3", {}, tensors)
    vectors = []
    for number, file in enumerate((plain, theirs)):
        with unpacked(file) as folder:
            model = tinychat.load(tinychat.convert(folder, tmp_path / str(number), quant="f32"), context=256)
        vectors.append(model.embed([[5, 6, 7]]).tobytes())
    assert vectors[0] == vectors[1]


@pytest.mark.parametrize(("pre", "expected"), [(None, "llama-bpe"), ("default", "llama-bpe"), ("gpt-2", "gpt-2")])
def test_old_files_of_llama_3_get_its_pre_tokenizer(pre, expected):
    tokens = [f"t{i}" for i in range(128006)] + ["<|start_header_id|>"]
    metadata = {"general.architecture": "llama", "tokenizer.ggml.tokens": tokens}
    metadata |= {} if pre is None else {"tokenizer.ggml.pre": pre}
    in_llama_cpp_form(metadata, {})
    assert metadata["tokenizer.ggml.pre"] == expected


ANY_OF = {"type": "array", "items": {"enum": ["a", "b"]}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather.\nOf today.",
            "parameters": {
                "type": "object",
                "required": ["place"],
                "properties": {
                    "place": {"type": "string", "description": "A town."},
                    "unit": {"enum": ["C", "F"], "default": "C"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "more": {
                        "type": "object",
                        "required": True,
                        "properties": {
                            "wind": {"type": ["boolean", "null"]},
                            "of": ANY_OF,
                            "by": {},
                            "at": {"type": "array"},
                        },
                    },
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object"}}},
]
TYPES = """\
// Tell the weather.
// Of today.
type weather = (_: {
// A town.
place: string,
unit?: "C" | "F", // default: "C"
days?: number[],
more?: {
wind?: boolean | null,
of?: ("a" | "b")[],
by?: any,
at?: any[],
},
}) => any;

type now = () => any;

} // namespace functions<|end|>"""
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Rome"}}}


@pytest.fixture
def gpt_oss_template(tmp_path):
    plain = gguf_files.write_variant(BY_NAME["gpt-oss"], tmp_path / "plain.gguf")
    with unpacked(rewritten(plain, tmp_path / "theirs.gguf", "gptoss", {}, {})) as folder:
        return load_template(folder, load_tokenizer(folder))


def test_turns_of_gpt_oss(gpt_oss_template):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    text = gpt_oss_template.render(turns, add_generation_prompt=False, reasoning_effort="low")
    assert "\nReasoning: low\n" in text and "developer" not in text
    assert text.endswith(
        "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>"
    )
    text = gpt_oss_template.render([*turns, {"role": "user", "content": "Bye"}])
    assert text.endswith("Hello<|end|><|start|>user<|message|>Bye<|end|><|start|>assistant")


@pytest.mark.parametrize(
    ("asked", "told"), [(None, "medium"), ("none", "low"), ("minimal", "low"), ("medium", "medium"), ("xhigh", "high")]
)
def test_efforts_of_gpt_oss(gpt_oss_template, asked, told):
    variables = {} if asked is None else {"reasoning_effort": asked}
    turns = [
        {"role": "system", "content": ""},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Rhyme."},
    ]
    text = gpt_oss_template.render(turns, **variables)
    assert f"\nReasoning: {told}\n" in text
    assert text.endswith(
        "for every message.<|end|><|start|>user<|message|>Hi<|end|>"
        "<|start|>developer<|message|>Rhyme.<|end|><|start|>assistant"
    )


def test_thoughts_of_gpt_oss_stay_until_the_answer(gpt_oss_template):
    result = {"role": "tool", "tool_call_id": "c1", "content": "yes"}
    called = {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "Hm."}
    turns = [{"role": "user", "content": "Sun?"}, called, result]
    thoughts = "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
    assert thoughts in gpt_oss_template.render(turns)
    answer = {"role": "assistant", "content": "Yes.", "reasoning": "So."}
    assert "analysis<|message|>" not in gpt_oss_template.render([*turns, answer, turns[0]])


def test_tools_of_gpt_oss(gpt_oss_template):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Sun?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "yes"},
    ]
    text = gpt_oss_template.render(turns, tools=TOOLS)
    assert "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>" in text
    assert "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\n" in text
    assert TYPES in text
    assert text.endswith(
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"place": "Rome"}<|call|>'
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>yes<|end|><|start|>assistant"
    )
