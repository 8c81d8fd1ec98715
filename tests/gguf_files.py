"""GGUF files of the checkpoints of families.py, written as llama.cpp's converter does, by the package `gguf`."""

import json
from dataclasses import replace

import families
import gguf
import ml_dtypes
import numpy as np
from variants.common import YARN, longrope

from tinychat.checkpoint.group_codes import E2M1
from tinychat.models.architectures import parse_config

# By model_type.
ARCHITECTURES = {
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gemma4_assistant": "gemma4-assistant",
    "embedding_gemma2_text": "gemma-embedding2",
    "gemma3n_text": "gemma3n",
    "olmo3": "olmo2",
    "ministral3": "mistral3",
    "glm": "chatglm",
    "gpt_bigcode": "starcoder",
    "phi": "phi2",
    "gpt_neox": "gptneox",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "granitemoeshared": "granitemoe",
    "glm4_moe": "glm4moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"), "deepseek2"),
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    **dict.fromkeys(("granitemoehybrid", "bamba"), "granitehybrid"),
    "falcon_h1": "falcon-h1",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "exaone_moe": "exaone-moe",
    "kimi_linear": "kimi-linear",
    "bailing_hybrid": "bailingmoe3",
    "cohere": "command-r",
    "bailing_moe": "bailingmoe2",
    "minimax_m2": "minimax-m2",
    "muse_glimmer_text": "muse-glimmer",
    "cohere2_moe": "cohere2moe",
    **dict.fromkeys(("roberta", "xlm-roberta", "distilbert"), "bert"),
    "nomic_bert": "nomic-bert",
    "modernbert": "modern-bert",
    "jina_embeddings_v3": "jina-bert-v3",
}
# The package has no names for some architectures yet: another one's, whose tensors are called the same.
NAMED_LIKE = {
    "laguna": "step35",
    "gemma4-assistant": "gemma4",
    "gemma-embedding2": "gemma4",
    "muse-glimmer": "afmoe",
    "cohere2moe": "dots1",
    "bailingmoe3": "kimi-linear",
}
MAMBAS = ("granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")
CHANNEL_DELTAS = ("kimi-linear", "bailingmoe3")
LATENTS = ("deepseek2", "mistral4", *CHANNEL_DELTAS)
DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next")
# Whose queries and keys llama.cpp rotates in neighbouring pairs, and transformers in halves.
# Which its converter leaves out of names.
ENCODER_PREFIXES = {
    **dict.fromkeys(("BertModel", "JinaBertModel"), "bert."),
    "RobertaModel": "roberta.",
    "DistilBertModel": "distilbert.",
    "XLMRobertaModel": "roberta.",
    "NomicBertModel": "nomic_bert.",
    "JinaEmbeddingsV3Model": "roberta.",
    "ModernBertModel": "model.",
}
GRANITES = ("granite", "granitemoe", "granitehybrid")
PERMUTED = (*GRANITES, "llama", "olmo", "arcee", "smollm3", "minicpm", "mistral3", "internlm2", "baichuan")
PERMUTED += ("muse-glimmer",)


def like(name, **changes):
    """Return a variant in what llama.cpp takes as given: see `VARIANTS`."""
    variant = families.BY_NAME[name]
    return replace(variant, config={key: value for key, value in (variant.config | changes).items() if value != "none"})


SECTIONS = {"rope_type": "default", "mrope_section": [2, 2, 2]}
PLAIN_EXPERTS = {"time_step_min": 0.0, "n_group": 1, "topk_group": 1}
WIDTHS = {"mamba_n_heads": 4, "mamba_expand": 2}
# What its architectures can be: scores divided by the size of heads, every sixth layer without a window, biases where
# it knows them. "none" takes a key away.
VARIANTS = [
    *(like(name) for name in ("llama2-gqa", "smollm2", "mistral", "qwen2-tied", "qwen3", "gemma")),
    like("phi3", sliding_window=None),
    like("gemma2", query_pre_attn_scalar=40),
    like("gemma3", query_pre_attn_scalar=40, sliding_window_pattern=6, rope_local_base_freq=1e4),
    # It reads the keys of the last two layers that have some, of which the second has no window; and it rounds keys,
    # whose scores are sharp: the fewer layers, the less comes of it.
    like("gemma4", num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2),
    *(like(name, num_hidden_layers=2) for name in ("gemma4-large", "gemma4-moe")),
    # llama.cpp takes as given 20 layers with keys of their own, ten with sparse gates, whose squares it divides by one
    # less, and the cap of logits: so layers are many, and gates too.
    like(
        "gemma3n",
        num_hidden_layers=22,
        layer_types="none",
        intermediate_size=1056,
        rope_local_base_freq=1e4,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=517,
        laurel_rank=64,
        final_logit_softcapping=30.0,
        activation_sparsity_pattern="none",
    ),
    *(like(name) for name in ("granite", "minicpm", "olmo2", "olmo3", "ministral3", "chatglm3", "qwen")),
    *(like(name, head_dim=24) for name in ("exaone4", "exaone4-full", "glm", "glm4")),
    # Of a model that also looks at images.
    replace(like("glm4", head_dim=24, rope_scaling=SECTIONS), name="glm4-sections"),
    like("internlm2", bias=False, rope_scaling=None),
    like("exaone", rope_scaling=None),
    like("baichuan2-7b", z_loss_weight="none"),
    *(like(name) for name in ("stablelm", "stablelm-parallel", "phi", "gpt-neox", "gpt2", "starcoder", "bloom", "mpt")),
    like("starcoder2", sliding_window=None),
    like("gpt-neox-serial", attention_bias=True),
    like("falcon-7b"),
    *(like(name, bias=False) for name in ("falcon-40b", "falcon-11b")),
    *(like(name) for name in ("qwen3-moe", "granite-moe", "granite-moe-shared")),
    # llama.cpp knows no groups of heads of it.
    like("olmoe", num_key_value_heads=4),
    # llama.cpp knows no window of it.
    like("mixtral", sliding_window=None),
    like("qwen2-moe", use_sliding_window=False),
    # Gates are clamped at the usual bound, which no key says.
    like("gpt-oss", swiglu_limit="none"),
    like("lfm2"),
    like("glm4-moe"),
    *(like(name, attention_bias=False) for name in ("hunyuan", "hunyuan-moe")),
    # llama.cpp knows no window, no groups of experts and no groups of heads of it.
    like("dots1", num_key_value_heads=4, n_group=1, topk_group=1, sliding_window=None),
    like("ernie4.5-moe"),
    # llama.cpp takes the factor as given.
    like("lfm2-moe", routed_scaling_factor=1.0),
    like("arcee", rope_scaling=None),
    # llama.cpp knows no groups of few experts, nor biases of latents, nor another order of layers.
    like("youtu", attention_bias=False),
    like("deepseek-v2"),
    like("deepseek-v3", n_group=1, topk_group=1),
    like("mistral4"),
    like("glm4-moe-lite", mlp_layer_types="none"),
    # Its states have as many heads as attention.
    like(
        "kimi-linear",
        num_expert_group=1,
        topk_group=1,
        linear_attn_config=families.BY_NAME["kimi-linear"].config["linear_attn_config"] | {"num_heads": 4},
    ),
    *(like(name) for name in ("ling-3.0-flash", "ling-3.0-tiny")),
    # llama.cpp has the multipliers by the architecture, and values as wide as heads would be.
    like(
        "minicpm3",
        num_attention_heads=6,
        num_key_value_heads=6,
        v_head_dim=16,
        scale_emb=12,
        scale_depth=1.4,
        dim_model_base=256,
        rope_scaling=longrope(6, original_max_position_embeddings=256),
    ),
    like("afmoe"),
    like("exaone-moe", n_group=1, topk_group=1),
    # llama.cpp takes the epsilon of norms behind attention and MLP as given.
    like("muse-glimmer", post_norm_eps=1e-8),
    # llama.cpp takes the layers without a window as given, and computes the factor of angles itself.
    like(
        "laguna",
        layer_types=["full_attention", *["sliding_attention"] * 3],
        num_attention_heads_per_layer=[4, 6, 6, 6],
        rope_parameters={
            **families.BY_NAME["laguna"].config["rope_parameters"],
            "full_attention": YARN
            | {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "attention_factor": 1 + 0.1 * np.log(4).item()},
        },
    ),
    like("apertus", rope_scaling={"rope_type": "default"}),
    # llama.cpp has another activation than the checkpoints that people have, and an output that is the embedding.
    like("bitnet", hidden_act="silu"),
    like("cohere", attention_bias=False),
    like("cohere2"),
    # llama.cpp knows no biases of it, and averages what shared experts give.
    like("cohere2-moe"),
    like("cohere2-moe-sigmoid", attention_bias=False, shared_expert_combination_strategy="average"),
    like("ernie4.5", use_bias=False),
    # llama.cpp knows no other size of heads of these.
    like("ling-mini-2.0", head_dim=24),
    like("nemotron", head_dim=24),
    like("jais2"),
    like("olmo", num_key_value_heads=4),
    like("minimax-m2"),
    # llama.cpp takes the size of windows as given.
    like("smallthinker", sliding_window_size=4096),
    like("smallthinker-softmax"),
    # No key says how near logits are.
    like("phi-moe", router_jitter_noise=0.01),
    like("seed-oss"),
    # Heads of values are as wide as those of keys.
    *(
        like(name, attention_bias=False, layer_types="none", full_attention_interval=2, linear_value_head_dim=16)
        for name in ("qwen3.5", "qwen3.5-moe")
    ),
    # Experts' probabilities sum up to 1 there.
    like("qwen3-next", mlp_only_layers=[], full_attention_interval=2, linear_value_head_dim=16, norm_topk_prob=True),
    # llama.cpp knows no bounds of steps, nor biases of the projections of Mamba-2; its values are twice as wide as the
    # model.
    *(like(name, time_step_limit="none", **WIDTHS) for name in ("granite-hybrid", "granite-hybrid-moe")),
    like("bamba", mamba_proj_bias=False, **WIDTHS),
    # Every second layer has experts, and llama.cpp takes that of biases of projections as none.
    like("jamba", num_hidden_layers=6),
    like("jamba-dense", mamba_proj_bias=False),
    like("falcon-h1"),
    like("falcon-h1-normed", **{key: "none" for key in families.BY_NAME["falcon-h1"].config if "multiplier" in key}),
    # Experts in every MLP, or in none, and no groups of them, nor a least step.
    like("nemotron-h", time_step_min=0.0, hybrid_override_pattern="-M-M*-"),
    like("nemotron3", use_bias=False, **PLAIN_EXPERTS),
    replace(like("nemotron-h", hybrid_override_pattern="EM*E", **PLAIN_EXPERTS), name="nemotron-h-latents"),
]
BY_NAME = {variant.name: variant for variant in VARIANTS}


def gguf_names(architecture, names):
    """Return what llama.cpp calls tensors of a Hugging Face checkpoint, as the package `gguf` knows it."""
    numbers = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[NAMED_LIKE.get(architecture, architecture)], 40)
    found = {}
    for name in names:
        # As its converters do.
        plain = name.removeprefix("transformer.") if architecture in ("bloom", "chatglm") else name
        if architecture == "bitnet":
            # The package knows the first models' names.
            plain = plain.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")
        found[name] = known.get_name(plain, try_suffixes=(".weight", ".bias"))
    return found


def interleaved(rows, heads):
    """Bring channel i + d/2 of each head behind channel i."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def in_halves(rows, config):
    """Return rows of queries or keys with the channels that are rotated as the first of each pair before the others."""
    heads = rows.reshape(-1, config.head_dim, *rows.shape[1:])
    turned = heads[:, : config.rotary_dim]
    parts = [turned[:, ::2], turned[:, 1::2], heads[:, config.rotary_dim :]]
    return np.concatenate(parts, axis=1).reshape(rows.shape)


def byte_level_tokens(vocab_size):
    """Return the vocabulary of `families.write_tokenizer`, and the kind of each token."""
    from tokenizers import pre_tokenizers

    tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    # One that a merge makes: llama.cpp refuses a vocabulary without any.
    tokens += [tokens[3] + tokens[4]]
    tokens += [f"filler{i}" for i in range(len(tokens), vocab_size)]
    return tokens, [3, 3, 3] + [1] * (vocab_size - 3)


def mixture(name):
    """Return types of tensors of codes by the checkpoint's names: every form, mixed within a linear and over layers."""
    kinds = {"q_proj": "Q4_1", "k_proj": "Q4_0", "v_proj": "Q8_0", "o_proj": "Q4_0", "gate_proj": "Q4_1"}
    kinds |= {"up_proj": "Q4_1", "down_proj": "Q5_1", "embed_tokens": "Q8_0", "lm_head": "Q5_0"}
    if ".1." in name and "down_proj" in name:
        return "Q4_0"
    return next((kind for part, kind in kinds.items() if part in name), "F32")


def write_variant(
    variant,
    path,
    kind_of=lambda name: "F32",
    pooling=None,
    rerank=None,
    weights=None,
    special=(),
    template=None,
    architecture=None,
    stacked=0,
    **tensors,
):
    """Write a variant as a GGUF file with `tensors` beside its own.

    kind_of : the type of each tensor by its name in the checkpoint; float32 where its rows make no whole blocks.
    weights : its own, if they are not those of families.py.
    special : tokens with a meaning by their ids; template : of a chat.
    architecture : llama.cpp's name where the model also sees; stacked : the layers that get images, too.
    pooling : of an embedding model, which also puts an end token behind texts; rerank : how a decoder writes pairs.
    """
    raw, config = variant.config, parse_config(variant.config, variant.name)
    architecture = architecture or ARCHITECTURES.get(raw["model_type"], raw["model_type"])
    if architecture == "nemotron_h" and config.experts:
        architecture = "nemotron_h_moe"
    if config.architecture == "JinaBertModel":
        architecture = "jina-bert-v2"
    if architecture == "nomic-bert" and config.experts:
        architecture = "nomic-bert-moe"
    if architecture == "gemma3" and config.bidirectional:
        architecture = "gemma-embedding"
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, architecture, raw, config)
    add_particulars(writer, architecture, raw, config)
    tokens, kinds = byte_level_tokens(config.vocab_size)
    for i, token in dict(special).items():
        tokens[i], kinds[i] = token, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{tokens[3]} {tokens[4]}"])
    if template is not None:
        writer.add_chat_template(template)
    if stacked:
        writer.add_num_deepstack_layers(stacked)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
        writer.add_add_eos_token(True)
    if rerank is not None:
        writer.add_array(f"{architecture}.classifier.output_labels", ["yes", "no"][: len(tensors["cls.output"])])
        writer.add_string("tokenizer.chat_template.rerank", rerank)
    for name, values in tensors.items():
        has_ending = name.endswith((".scale", ".bias", "_ordering"))
        writer.add_tensor(name if has_ending else f"{name}.weight", values)
    add_rope(writer, raw)
    weights = families.make_weights(variant) if weights is None else weights
    if config.selective:
        weights = of_selective(config.selective, families.stored(variant, weights))
    if config.mamba:
        weights = of_mamba(raw, config.mamba, families.with_whole_tensors(weights))
    weights = converted(architecture, config, weights)
    if architecture == "apertus":
        for end in ("p", "n"):
            listed = [weights.pop(name).item() for name in sorted(weights) if name.endswith(f"alpha_{end}.weight")]
            getattr(writer, f"add_xielu_alpha_{end}")(listed)
        writer.add_xielu_beta([0.5] * config.num_hidden_layers)
        writer.add_xielu_eps([-1e-6] * config.num_hidden_layers)
    if raw.get("rope_scaling") == SECTIONS:
        rotated = [name for name in weights if "q_proj" in name or "k_proj" in name]
        weights |= {name: in_halves(weights[name], config) for name in rotated}
    names = gguf_names(architecture, weights)
    for name, values in weights.items():
        kind = gguf.GGMLQuantizationType[kind_of(name)]
        if values.ndim < 2 or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        quantize = quantized_to_nvfp4 if kind.name == "NVFP4" else gguf.quants.quantize
        writer.add_tensor(names[name] or name, quantize(values, kind), raw_dtype=kind)
    write(writer)
    return path


def quantized_to_nvfp4(values, kind):
    """Return blocks of NVFP4, which the package only reads: four scales, and codes of 16 columns in 8 bytes each."""
    groups = values.reshape(-1, 4, 16).astype(np.float32)
    scales = np.maximum(np.abs(groups).max(axis=2) / 6, 2.0**-9).astype(ml_dtypes.float8_e4m3fn)
    steps = groups / scales.astype(np.float32)[..., None]
    codes = np.abs(steps[..., None] - E2M1 / np.float32(2)).argmin(axis=3).astype(np.uint8)
    packed = codes[..., :8] | codes[..., 8:] << 4
    blocks = np.concatenate([scales.view(np.uint8), packed.reshape(-1, 32)], axis=1)
    return blocks.reshape(*values.shape[:-1], -1)


def add_sizes(writer, architecture, raw, config):
    """Write what all architectures have."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    # Qwen 1 says the width of both halves.
    width = config.intermediate_size * (2 if raw["model_type"] == "qwen" else 1)
    if raw["model_type"] == "granitemoehybrid" and config.experts:
        width = config.experts.intermediate_size
    wide = config.varied.wide_mlps if config.varied else ()
    widths = [width * (2 if layer in wide else 1) for layer in range(config.num_hidden_layers)]
    if config.mlp_alone:
        inner = config.experts.intermediate_size if config.experts else width
        writer.add_feed_forward_length([inner * (i in config.mlp_alone) for i in range(config.num_hidden_layers)])
    else:
        writer.add_feed_forward_length(widths if wide else width)
    writer.add_head_count(raw.get("num_attention_heads_per_layer") or config.num_attention_heads)
    if config.conv_layers:
        layers = range(config.num_hidden_layers)
        writer.add_head_count_kv([0 if i in config.conv_layers else config.num_key_value_heads for i in layers])
        writer.add_shortconv_l_cache(config.conv_L_cache)
    elif architecture in CHANNEL_DELTAS:
        layers = range(config.num_hidden_layers)
        writer.add_head_count_kv([int(layer in config.attention_layers) for layer in layers])
    elif config.varied and config.varied.wide_key_value_heads != config.num_key_value_heads:
        heads = config.num_key_value_heads, config.varied.wide_key_value_heads
        writer.add_head_count_kv([heads[layer in config.varied.wide] for layer in range(config.num_hidden_layers)])
    elif config.selective or (config.mamba and not config.mamba.beside_attention):
        layers = range(config.num_hidden_layers)
        writer.add_head_count_kv([config.num_key_value_heads * (i in config.attention_layers) for i in layers])
    else:
        own = raw["num_key_value_heads"] if architecture == "minicpm3" else config.num_key_value_heads
        writer.add_head_count_kv(own)
    if config.altup:
        add_altup(writer, config)
    elif config.varied:
        add_varied(writer, config)
    elif architecture == "minicpm3":
        writer.add_key_length(config.latents.query_dim)
    elif config.head_dim * config.num_attention_heads != config.hidden_size or "head_dim" in raw:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.value_dim)
    if config.layer_norm or config.mlp_alone:
        writer.add_layer_norm_eps(config.rms_norm_eps)
    if not config.layer_norm:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.rotary_dim:
        writer.add_rope_freq_base(config.rope_theta)
        writer.add_rope_dimension_count(config.rotary_dim)
    if any(config.sliding_windows) and not config.conv_layers:
        window = raw.get("sliding_window") or raw.get("local_attention") or max(config.sliding_windows)
        # EmbeddingGemma 2 says how far it reaches to one side.
        window *= 2 if config.embedding_dim else 1
        writer.add_sliding_window(window if config.bidirectional else max(config.sliding_windows))
    if config.bidirectional:
        writer.add_causal_attention(False)
        if architecture == "modern-bert":
            writer.add_rope_freq_base_swa(config.sliding_rope_theta)
        if "type_vocab_size" in raw:
            writer.add_token_type_count(raw["type_vocab_size"])


def add_varied(writer, config):
    """Write what differs between layers of Gemma 4."""
    varied = config.varied
    writer.add_key_length(varied.wide_head_dim)
    writer.add_value_length(varied.wide_head_dim)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)
    writer.add_rope_freq_base_swa(config.sliding_rope_theta)
    writer.add_sliding_window_pattern([window > 0 for window in config.sliding_windows])
    writer.add_shared_kv_layers(sum(source != layer for layer, source in enumerate(varied.sources)))
    writer.add_embedding_length_per_layer_input(varied.input_size)
    if config.logits_softcap:
        writer.add_final_logit_softcapping(config.logits_softcap)
    if config.embedding_dim:
        writer.add_embedding_length_out(config.embedding_dim)
    if config.rope_scaling is None:
        return
    # Pairs of channels that stay are divided by a number without end.
    pairs = varied.wide_head_dim // 2
    turned = int(config.rope_scaling.rotated * pairs)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32))


def add_altup(writer, config):
    """Write what Gemma 3n has; the last number is a float in its makers' files."""
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window_pattern([window > 0 for window in config.sliding_windows])
    writer.add_embedding_length_per_layer_input(config.varied.input_size)
    writer.add_final_logit_softcapping(config.logits_softcap)
    writer.add_altup_num_inputs(4)
    writer.add_altup_active_idx(0)
    writer.add_activation_sparsity_scale([-np.inf if each is None else each for each in config.altup.cutoffs])
    readers = sum(source != layer for layer, source in enumerate(config.varied.sources))
    writer.add_float32("gemma3n.attention.shared_kv_layers", readers)


def add_particulars(writer, architecture, raw, config):
    """Write what some architectures have."""
    if architecture == "muse-glimmer":
        writer.add_logit_scale(config.logits_multiplier)
        writer.add_final_logit_softcapping(config.logits_softcap)
        for part, factor in (("q", raw["qk_scale_factor"]), ("k", 1.0)):
            for layer in range(config.num_hidden_layers):
                gains = np.full(config.head_dim, factor, np.float32)
                writer.add_tensor(f"blk.{layer}.attn_{part}_norm.weight", gains)
    if architecture == "cohere2moe":
        function = gguf.ExpertGatingFuncType["SIGMOID" if config.experts.sigmoid else "SOFTMAX"]
        writer.add_expert_gating_func(function)
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        writer.add_leading_dense_block_count(config.experts.layers[0])
        writer.add_expert_weights_norm(config.experts.norm_topk_prob)
        writer.add_expert_shared_count(raw["num_shared_experts"])
    if architecture in ("gemma2", "gemma3"):
        if config.attention_softcap:
            writer.add_attn_logit_softcapping(config.attention_softcap)
        if config.logits_softcap:
            writer.add_final_logit_softcapping(config.logits_softcap)
    is_granite = architecture in ("granite", "granitemoe") or raw["model_type"] == "granitemoehybrid"
    if is_granite or architecture == "minicpm":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(1 / config.logits_multiplier)
    if architecture in ("command-r", "cohere2", "cohere2moe"):
        writer.add_logit_scale(config.logits_multiplier)
    if is_granite:
        writer.add_attention_scale(config.attention_scale)
    if any(config.sliding_windows) and architecture in ("olmo2", "exaone4", "exaone-moe", "muse-glimmer", "cohere2moe"):
        writer.add_sliding_window_pattern([window > 0 for window in config.sliding_windows])
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(raw["rope_parameters"]["mscale_all_dim"])
        writer.add_attn_temperature_scale(config.temperature_beta)
    if architecture in ("gptneox", "stablelm"):
        writer.add_parallel_residual(config.parallel)
    if config.experts:
        writer.add_expert_count(config.experts.num_experts)
        writer.add_expert_used_count(config.experts.num_experts_per_tok)
    if architecture == "nomic-bert-moe":
        writer.add_moe_every_n_layers(raw["moe_every_n_layers"])
    if architecture in ("qwen2moe", "qwen3moe", "qwen3vlmoe", "gpt-oss", "hunyuan-moe") or (
        architecture == "gemma4" and config.experts
    ):
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
    if architecture == "minimax-m2":
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture in ("glm4moe", "dots1", "lfm2moe", "afmoe", "exaone-moe", "laguna", "bailingmoe2"):
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        writer.add_leading_dense_block_count(config.experts.layers[0])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.experts.scale)
        writer.add_expert_weights_norm(config.experts.norm_topk_prob)
    if architecture == "smallthinker":
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        function = gguf.ExpertGatingFuncType["SIGMOID" if config.experts.sigmoid else "SOFTMAX"]
        writer.add_expert_gating_func(function)
    if architecture == "laguna":
        writer.add_expert_shared_feed_forward_length(config.experts.shared_intermediate_size)
        writer.add_rope_dimension_count_swa(max(config.rotary_dims))
        writer.add_rope_freq_base_swa(config.sliding_rope_theta)
    if architecture == "ernie4_5-moe":
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        writer.add_expert_shared_count(raw["moe_num_shared_experts"])
        writer.add_leading_dense_block_count(config.experts.layers[0])
        writer.add_interleave_moe_layer_step(1)
    if architecture == "bailingmoe2":
        writer.add_expert_shared_feed_forward_length(raw["moe_intermediate_size"])
        writer.add_expert_group_count(config.experts.n_group)
        writer.add_expert_group_used_count(config.experts.topk_group)
    if architecture in ("afmoe", "exaone-moe", "bailingmoe2"):
        writer.add_expert_shared_count(raw["num_shared_experts"])
    if architecture in ("glm4moe", "dots1"):
        writer.add_expert_shared_count(raw["n_shared_experts"])
    if architecture in DELTA_NETS:
        net = config.delta_net
        writer.add_ssm_conv_kernel(net.taps)
        writer.add_ssm_state_size(net.key_dim)
        writer.add_ssm_group_count(net.key_heads)
        writer.add_ssm_time_step_rank(net.value_heads)
        writer.add_ssm_inner_size(net.value_size)
        writer.add_full_attention_interval(raw["full_attention_interval"])
        # Three axes of positions, which are the same in text.
        pairs = config.rotary_dim // 2
        writer.add_rope_dimension_sections([pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0])
    if architecture in ("qwen35moe", "qwen3next"):
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
    if architecture in MAMBAS:
        net = config.mamba
        writer.add_ssm_conv_kernel(net.taps)
        writer.add_ssm_state_size(net.key_dim)
        writer.add_ssm_group_count(net.key_heads)
        writer.add_ssm_time_step_rank(net.value_heads)
        writer.add_ssm_inner_size(net.value_size)
    if architecture == "jamba":
        net = config.selective
        writer.add_ssm_conv_kernel(net.taps)
        writer.add_ssm_state_size(net.key_dim)
        writer.add_ssm_time_step_rank(net.step_rank)
        writer.add_ssm_inner_size(net.value_size)
        writer.add_ssm_dt_b_c_rms(True)
    if architecture == "granitehybrid":
        writer.add_rope_scaling_finetuned(raw["model_type"] == "bamba")
    if architecture == "nemotron_h_moe":
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(config.experts.scale)
        writer.add_expert_weights_norm(config.experts.norm_topk_prob)
        if config.experts.latent_size:
            writer.add_moe_latent_size(config.experts.latent_size)
    with_shared = (
        "qwen2moe",
        "exaone-moe",
        "qwen35moe",
        "qwen3next",
        "granitemoe",
        "ernie4_5-moe",
        "hunyuan-moe",
        "nemotron_h_moe",
    )
    if architecture in with_shared or (architecture == "granitehybrid" and config.experts):
        writer.add_expert_shared_feed_forward_length(config.experts.shared_intermediate_size)
    if config.latents:
        writer.add_q_lora_rank(config.latents.q_lora_rank)
        writer.add_kv_lora_rank(config.latents.kv_lora_rank)
    if architecture in LATENTS:
        sizes = config.latents
        writer.add_key_length_mla(sizes.query_dim)
        writer.add_value_length_mla(sizes.v_head_dim)
        writer.add_leading_dense_block_count(config.experts.layers[0] if config.experts else config.num_hidden_layers)
        if architecture == "mistral4":
            writer.add_attn_temperature_scale(config.temperature_beta)
            writer.add_attn_temperature_length(config.temperature_length)
        if scaling := raw.get("rope_scaling") or raw.get("rope_parameters"):
            writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
    if architecture == "deepseek2" and not config.experts:
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_count(0)
    if architecture in LATENTS and config.experts:
        sigmoid = gguf.ExpertGatingFuncType.SIGMOID if config.experts.sigmoid else gguf.ExpertGatingFuncType.SOFTMAX
        writer.add_expert_gating_func(sigmoid)
        writer.add_expert_feed_forward_length(config.experts.intermediate_size)
        writer.add_expert_shared_count(config.experts.shared_intermediate_size // config.experts.intermediate_size)
        writer.add_expert_weights_scale(config.experts.scale)
        writer.add_expert_weights_norm(config.experts.norm_topk_prob)
    if architecture == "bailingmoe3":
        writer.add_expert_group_count(config.experts.n_group)
        writer.add_expert_group_used_count(config.experts.topk_group)
        writer.add_expert_shared_feed_forward_length(config.experts.shared_intermediate_size)
        writer.add_float32("bailingmoe3.kda.gate_lower_bound", config.delta_net.decay_bound)
        for ours, theirs in (("exp", "expert"), ("shexp", "share_expert")):
            if limits := raw.get(f"{theirs}_swiglu_limit_list"):
                writer.add_array(f"bailingmoe3.swiglu_clamp_{ours}", [*map(float, limits)])
    if architecture in CHANNEL_DELTAS:
        writer.add_rope_dimension_count(config.latents.qk_rope_head_dim)
        writer.add_kda_head_dim(config.delta_net.key_dim)
        writer.add_ssm_conv_kernel(config.delta_net.taps)
    if architecture == "mpt":
        writer.add_max_alibi_bias(8.0)
    if config.drafter:
        writer.add_embedding_length_out(config.drafter.hidden_size)
        writer.add_nextn_predict_layers(config.num_hidden_layers)


def add_rope(writer, raw):
    """Write what stretches positions."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    scaling = scaling.get("full_attention", scaling)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        for which in ("short", "long"):
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(scaling[f"{which}_factor"], np.float32))
        length = "original_max_position_embeddings"
        writer.add_rope_scaling_orig_ctx_len(raw.get(length) or scaling[length])
        if "attention_factor" in scaling:
            writer.add_rope_scaling_attn_factors(scaling["attention_factor"])
    if "mrope_section" in scaling:
        writer.add_rope_dimension_sections([*scaling["mrope_section"], 0])
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "attention_factor" in scaling:
            writer.add_rope_scaling_yarn_attn_factor(scaling["attention_factor"])


def converted(architecture, config, weights):
    """Return the tensors as llama.cpp's converter changes them, float32, still by their names in the checkpoint."""
    H, G, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    found = {}
    if architecture == "minicpm3":
        weights = families.with_heads_in_one(weights)
    if architecture in CHANNEL_DELTAS:
        rows = {name: v.reshape(-1, config.delta_net.taps) for name, v in weights.items() if "conv1d." in name}
        weights = families.with_taps_apart(weights | rows, config.delta_net)
    for name, values in weights.items():
        values, layer = values.astype(np.float32), name.partition("layers.")[2].partition(".")[0]
        if config.learned_positions and config.bidirectional and "position_embeddings" in name:
            values = values[-config.max_position_embeddings :]
        name = name.removeprefix(ENCODER_PREFIXES.get(config.architecture, ""))
        if name.endswith(".experts.bias.weight"):
            continue
        if ".experts." in name and name.endswith(".mlp.w2.weight"):
            values = np.ascontiguousarray(values.T)
        if architecture in ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron") and name.endswith(
            "norm.weight"
        ):
            values = values + 1
        if architecture == "muse-glimmer" and name.endswith("layernorm.weight"):
            values = values + 1
        if architecture == "gpt2" and values.ndim == 2 and ".c_" in name:
            values = np.ascontiguousarray(values.T)
        if architecture in DELTA_NETS:
            name, values = of_delta_net(name, values, config.delta_net, architecture != "qwen3next")
        if architecture in CHANNEL_DELTAS:
            name, values = of_channel_delta(name, values, config.delta_net)
        name = name.replace("model.embedding_projection", "output")
        if architecture == "bailingmoe3" and name.endswith(("f_proj.weight", "g_proj.weight")):
            theirs = "ssm_f_a" if "f_proj" in name else "ssm_g_a" if len(values) > H else "attn_gate"
            name = f"blk.{layer}.{theirs}.weight"
        if config.drafter and "_projection" in name:
            name = f"nextn.{name}"
        for ours, theirs in (("router.scale", "ffn_gate_inp"), ("router.per_expert_scale", "ffn_down_exps")):
            name = f"blk.{layer}.{theirs}.scale" if name.endswith(f".{ours}.weight") else name
        for gate in ("gate", "moe_statics", "mlp", "block_sparse_moe"):
            name = name.replace(f"{gate}.e_score_correction_bias.weight", f"{gate}.e_score_correction.bias")
        if architecture == "laguna":
            name = name.replace("experts.e_score_correction_bias.weight", "gate.e_score_correction.bias")
        if architecture in ("lfm2moe", "afmoe", "bailingmoe2"):
            name = name.replace("expert_bias.weight", "expert_bias.bias")
        if architecture == "lfm2moe":
            if ".experts." in name:
                for theirs, ours in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
                    name = name.replace(f".{theirs}.", f".{ours}.").replace("feed_forward", "mlp")
        if architecture in ("lfm2", "lfm2moe") and ".conv.conv." in name:
            values = values.reshape(config.hidden_size, -1)
        if architecture in ("granitemoe", "granitehybrid"):
            name = name.replace("output_linear", "w2") if ".experts." in name else name
        if architecture in ("bloom", "gptneox", "falcon") and "query_key_value" in name:
            groups = values.reshape(G, H // G + 2, d, -1)
            parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
            values = np.concatenate([part.reshape(-1, groups.shape[-1]) for part in parts]).reshape(values.shape)
        if "W_pack" in name or "wqkv" in name:
            end = name.rpartition(".")[2]
            stems = (f"model.layers.{layer}.self_attn.{part}_proj.{end}" for part in "qkv")
            groups = values.reshape(1 if "W_pack" in name else G, -1, d, *values.shape[1:])
            heads = (H, G, G) if "W_pack" in name else (H // G, 1, 1)
            cuts = np.split(groups, np.cumsum(heads)[:-1], axis=1)
            found |= {stem: cut.reshape(-1, *values.shape[1:]) for stem, cut in zip(stems, cuts)}
        elif "in_proj_qkvz" in name:
            net = config.delta_net
            group = net.value_heads // net.key_heads * net.value_dim
            by_head = values.reshape(net.key_heads, -1, values.shape[1])
            cuts = np.split(by_head, np.cumsum([net.key_dim, net.key_dim, group]), axis=1)
            *qkv, z = (cut.reshape(-1, values.shape[1]) for cut in cuts)
            found |= {name.replace("qkvz", "qkv"): np.concatenate(qkv), name.replace("qkvz", "z"): z}
        elif ".experts." in name and ".gate_up_proj." in name:
            found |= {name.replace("gate_up", half): values[i::2] for i, half in enumerate(("gate", "up"))}
        elif "input_linear" in name:
            mlp = ("w1", "w3") if ".experts." in name else ("gate_proj", "up_proj")
            stem = name.replace("shared_mlp", "mlp.shared_expert" if config.experts else "mlp")
            found |= {stem.replace("input_linear", part): half for part, half in zip(mlp, np.split(values, 2))}
        elif "shared_mlp.output_linear" in name and not config.experts:
            found[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = values
        else:
            found[name] = values
    if architecture in PERMUTED:
        for name, values in found.items():
            heads = H if "q_proj" in name else G if "k_proj" in name else 0
            found[name] = interleaved(values, heads) if heads else values
    found = stacked(found)
    if architecture == "gemma3n":
        for stem in ("model.altup_projections", "model.altup_unembed_projections"):
            found[f"{stem}.weight"] = np.stack([found.pop(f"{stem}.{i}.weight") for i in range(3)])
        # Checkpoints have tensors of keys and values that no layer uses, and llama.cpp asks for them.
        for layer, source in enumerate(config.varied.sources):
            stem, own = (f"model.layers.{i}.self_attn." for i in (layer, source))
            found |= {f"{stem}{part}.weight": found[f"{own}{part}.weight"] for part in ("k_proj", "v_proj", "k_norm")}
        for end, columns in (("modality_router.weight", config.hidden_size), ("coefs.weight", 4)):
            found |= {name: values.reshape(-1, columns) for name, values in found.items() if name.endswith(end)}
    if architecture == "gemma4":
        for stem in [name.removesuffix("gate_proj.weight") for name in found if "experts.gate_proj" in name]:
            halves = [found.pop(f"{stem}{half}_proj.weight") for half in ("gate", "up")]
            found[f"{stem}gate_up_proj.weight"] = np.concatenate(halves, axis=1)
    return found


def of_selective(net, weights):
    """Return tensors with decays, and taps without an axis."""
    found = {}
    for name, values in weights.items():
        values = values.astype(np.float32)
        if name.endswith(".A_log"):
            values = -np.exp(values)
        found[name] = values.reshape(net.channels, net.taps) if "conv1d.weight" in name else values
    return found


def of_mamba(raw, net, weights):
    """Return tensors with decays, vectors with an axis more, norms by group, and Falcon-H1's multipliers in weights."""
    found = {}
    for name, values in weights.items():
        values = values.astype(np.float32)
        if name.endswith(".A_log"):
            values = -np.exp(values).reshape(-1, 1)
        if name.endswith(".D"):
            values = values.reshape(-1, 1)
        if "conv1d.weight" in name:
            values = values.reshape(net.channels, net.taps)
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            values = values.reshape(net.key_heads, -1)
        if raw["model_type"] == "falcon_h1":
            values = multiplied(raw, net, name, values)
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace("mixer", "mlp")
        found[name.replace(".dt_bias", ".dt_proj.bias")] = values
    return found


def multiplied(raw, net, name, values):
    """Return a tensor of Falcon-H1 with its multipliers."""
    gates, downs = raw.get("mlp_multipliers", [1, 1])
    attended = raw.get("attention_in_multiplier", 1)
    factors = {
        "down_proj": downs,
        "gate_proj": gates,
        "k_proj": attended * raw.get("key_multiplier", 1),
        "q_proj": attended,
        "v_proj": attended,
        "o_proj": raw.get("attention_out_multiplier", 1),
        "out_proj": raw.get("ssm_out_multiplier", 1),
        "lm_head": raw.get("lm_head_multiplier", 1),
        "embed_tokens": raw.get("embedding_multiplier", 1),
    }
    if "mamba.in_proj" in name:
        sizes = net.value_size, net.value_size, net.key_size, net.key_size, net.value_heads
        by_row = np.repeat(np.array(raw.get("ssm_multipliers", [1] * 5), np.float32), sizes)
        return raw.get("ssm_in_multiplier", 1) * by_row[:, None] * values
    return np.float32(factors.get(name.split(".")[-2], 1)) * values


def of_delta_net(name, values, net, stands_apart):
    """Return the name and values of a tensor: gains with their 1, decays, and heads of values by number in a group.

    stands_apart : whether heads of values are reordered.
    """
    group = net.value_heads // net.key_heads

    def tiled(part, size=1):
        if not stands_apart:
            return part
        heads = part.reshape(net.key_heads, group, size, *part.shape[1:])
        return heads.swapaxes(0, 1).reshape(part.shape)

    kind = name.partition("linear_attn.")[2]
    if name.endswith("norm.weight") and not kind:
        values = values + 1
    if kind == "A_log.weight":
        return name.removesuffix(".weight"), -np.exp(tiled(values))
    if kind == "dt_bias.weight":
        return name.replace("dt_bias.weight", "dt_proj.bias"), tiled(values)
    if kind.startswith(("in_proj_a.", "in_proj_b.")):
        values = tiled(values)
    if kind.startswith("in_proj_z."):
        values = tiled(values, net.value_dim)
    if kind.startswith("conv1d."):
        values = values.reshape(net.channels, net.taps)
    if kind.startswith(("in_proj_qkv.", "conv1d.")):
        keys, own = np.split(values, [2 * net.key_size])
        values = np.concatenate([keys, tiled(own, net.value_dim)])
    if kind.startswith("out_proj."):
        values = np.ascontiguousarray(tiled(values.T, net.value_dim).T)
    return name, values


def of_channel_delta(name, values, net):
    """Return the name and values of a tensor: decays, and taps with axes of length 1."""
    if name.endswith("A_log.weight"):
        powers = np.exp(values)[:, None] if net.decay_bound else -np.exp(values)[None, None, :, None]
        return name.removesuffix(".weight"), powers
    if "_conv1d." in name:
        return name, values.reshape(1, -1, 1, net.taps)
    return name.replace("dt_bias.weight", "dt_proj.bias"), values


def stacked(weights):
    """Stack the weights of experts and of heads; a matrix of one row becomes a vector."""
    found, stacks = {}, {}
    for name, values in weights.items():
        stem, between, rest = name.partition(".experts.")
        if "_b_proj." in name and name.split(".")[-2].isdigit():
            whole, _, _ = name.removesuffix(".weight").rpartition(".")
            stacks.setdefault(f"{whole}.weight", []).append(values)
        elif between:
            stacks.setdefault(f"{stem}.experts.{rest.partition('.')[2]}", []).append(values)
        else:
            found[name] = values[0] if "shared_expert_gate" in name else values
    return found | {name: np.stack(parts) for name, parts in stacks.items()}


def write(writer):
    """Write what a writer holds, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(path, model, tokens, kinds, **arrays):
    """Write a file that holds a vocabulary, and an embedding of zeros."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 1,
        "feed_forward_length": 32,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, value in arrays.items():
        name = f"tokenizer.{key}" if key == "chat_template" else f"tokenizer.ggml.{key}"
        kind = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    write(writer)
    return path


def write_sentencepiece(path, model):
    """Write the vocabulary of a SentencePiece model, with its scores."""
    from sentencepiece import SentencePieceProcessor

    own = SentencePieceProcessor(model_file=str(model))
    ids = range(own.get_piece_size())
    kinds = [2 if own.is_unknown(i) else 3 if own.is_control(i) else 6 if own.is_byte(i) else 1 for i in ids]
    return write_vocabulary(
        path,
        "llama",
        [own.id_to_piece(i) for i in ids],
        kinds,
        scores=[float(own.get_score(i)) for i in ids],
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
    )


def write_spelled_pairs(path):
    """Write a vocabulary as Gemma 4 has it: merges of text as it is, with a sign for spaces, and bytes beside it."""
    tokens, merges = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], []
    kinds = [3, 3, 3, 2] + [6] * 256
    tokens += ["▁", "\n", *"abcdefghijklmnopqrstuvwxyz0123456789.,!é日"]
    for word in ("▁the", "don", "▁▁▁▁", "\n\n\n", "12", "▁é"):
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
                tokens.append(word[:end])
    kinds += [1] * (len(tokens) - len(kinds))
    ids = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0}
    return write_vocabulary(path, "gemma4", tokens, kinds, merges=merges, **ids)


def write_byte_pairs(path, pre):
    """Write a vocabulary whose merges show how the pre-tokenizer of a name cuts text."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġ12345", "Ġx", "don't", ";ĊĊ", "ĊĊ"]
    tokens, merges = ["<s>", *alphabet], []
    for word in words:
        for end in range(2, len(word) + 1):
            merge = f"{word[: end - 1]} {word[end - 1]}"
            if merge not in merges:
                merges.append(merge)
                tokens.append(word[:end])
    for extra in ("12", "123", "45", "'t"):
        merges.append(f"{extra[:-1]} {extra[-1]}")
        tokens.append(extra)
    return write_vocabulary(path, "gpt2", tokens, [3] + [1] * (len(tokens) - 1), pre=pre, merges=merges, bos_token_id=0)


def write_trained_pairs(path, pre, texts):
    """Write a vocabulary whose merges go beyond words: wherever a text is cut differently, ids differ."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=4000, min_frequency=1, max_token_length=24, initial_alphabet=alphabet)
    trained.train_from_iterator(texts, trainer)
    merges = [" ".join(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    tokens = ["<s>", *dict.fromkeys([*alphabet, *(merge.replace(" ", "") for merge in merges)])]
    return write_vocabulary(path, "gpt2", tokens, [3] + [1] * (len(tokens) - 1), pre=pre, merges=merges, bos_token_id=0)


def train_word_pieces(texts, lowercase=True):
    """Return a tokenizer of BERT's kind, trained on texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    trained.pre_tokenizer, trained.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trained.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    ends = [(token, trained.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    trained.post_processor = processors.TemplateProcessing(
        single=["[CLS]", "$A", "[SEP]"], pair=["[CLS]", "$A", "[SEP]", "$B", "[SEP]"], special_tokens=ends
    )
    return trained


def write_word_pieces(path, trained):
    """Write the vocabulary of BERT's tokenizer as llama.cpp's converter does: words begin with a sign for a space."""
    tokens = [trained.id_to_token(i) for i in range(trained.get_vocab_size())]
    written = [
        token if token.startswith("[") and token.endswith("]") else token[2:] if token.startswith("##") else f"▁{token}"
        for token in tokens
    ]
    ids = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1, "padding_token_id": 0}
    return write_vocabulary(path, "bert", written, [3] * 5 + [1] * (len(tokens) - 5), **ids)


def train_unigram(texts):
    """Return a tokenizer of XLM-RoBERTa's kind, trained on texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trained.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(texts, trainer)
    # Files have scores in float32: of two spellings that are as likely, either may be taken.
    entries = json.loads(trained.to_str())["model"]["vocab"]
    trained.model = models.Unigram([(token, float(np.float32(score))) for token, score in entries], 3)
    trained.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A", "</s>"], pair=["<s>", "$A", "</s>", "$B"], special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return trained


def write_unigram(path, trained, **values):
    """Write the vocabulary of a tokenizer of XLM-RoBERTa's kind."""
    entries = json.loads(trained.to_str())["model"]["vocab"]
    kinds = [3, 3, 3, 2, 3] + [1] * (len(entries) - 5)
    known = {"add_bos_token": True, "add_eos_token": True, "scores": [score for _, score in entries]}
    ids = {"bos_token_id": 0, "padding_token_id": 1, "eos_token_id": 2, "unknown_token_id": 3}
    return write_vocabulary(path, "t5", [token for token, _ in entries], kinds, **known | ids | values)
