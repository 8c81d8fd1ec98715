"""Tiny random checkpoints of every variant, made from a seed with numpy alone; `variants` is the table of them."""

import hashlib
import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
from variants import BY_NAME, NEWER, VARIANTS
from variants.common import Variant
from variants.llama import LISTED

from tinychat.models import architectures
from tinychat.models.architectures import expected_shapes, linears, norms, parse_config
from tinychat.models.distance_biases import BUCKETS
from tinychat.models.tensors import whole_and_part

__all__ = ["BY_NAME", "NEWER", "VARIANTS", "Variant"]

SHORT, LONG = 40, 200  # prompt lengths that are compared
SHORT_ROWS, LONG_ROWS = [39], [120, 199]  # the positions whose logits the goldens keep
NEW_TOKENS = 16
CONTEXT_SIZE = 256
DELTA_NETS = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "kimi_linear",
    "lara_mini",
    "bailing_hybrid",
)
TAPS = 4
BIASED = (
    "afmoe",
    "exaone_moe",
    "glm4_moe",
    "dots1",
    "lfm2_moe",
    "minimax_m2",
    "deepseek_v3",
    "glm4_moe_lite",
    "ernie4_5_moe",
    "laguna",
    "solar_open",
    "sarvam_moe",
    "sarvam_mla",
    "bailing_moe",
)
LATENTS = ("youtu", "minicpm3", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "sarvam_mla")
MAMBAS = ("granitemoehybrid", "bamba", "falcon_h1", "nemotron_h")
GEMMAS = ("gemma4_text", "gemma3n_text")
FEW = 9  # layers
ROUTING = {"modality_router": 20, "prediction_coefs": 1, "correction_coefs": 1}  # of how streams mix
# Of Inkling 2, queries of mixtures, profiles of scores, taps and biases of choices are of both signs.
MIXING = {
    **dict.fromkeys(("query", "output_query"), lambda values: 2 * (values - 1)),
    **{f"middle_cycle_cross_pass_{kind}": lambda values: 2 * (values - 1) for kind in ("queries", "kv_queries")},
    "proj": lambda values: 4 * (values - 1),
    **dict.fromkeys(("attn_sconv", "mlp_sconv", "k_sconv", "v_sconv", "static_w", "bias"), lambda values: values - 1),
}
# Vectors of Dory that are multiples of what all begin with, and others that multiply rows.
BEGINNINGS, FACTORS = (".sqk", ".s_gate", ".lambda_1", ".lambda_2"), (".suv_gate", ".suv_up", ".logit_scale")
GRANITES = ("granitemoe", "granitemoeshared")
APERTUS = ("apertus", "apertus1p5_text")
SINKS = ("gpt_oss", "granite_swa", "granitemoe_swa")
# Whose results a multiplier of the residual stream scales.
OUTPUTS = ("o_proj", "down_proj", "mamba_out_proj", "expert_down_proj", "shared_down_proj")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def kind_of(variant):
    """Return what the types of a variant's parameters depend on: what is equal shares its compiled code."""
    config = parse_config(variant.config, variant.name)
    names = (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
        "embed_norm",
        "attn_sub_norm",
    )
    found = {norm.name for norm in norms(config)}
    flags = (config.layer_norm, config.gated, config.parallel, config.learned_positions, config.hidden_act)
    scores = (config.attention_softcap is None, config.logits_softcap is None, bool(config.alibi_slopes), config.sinks)
    scores += (config.distance_biases,)
    experts = config.experts
    mixture = experts and (
        "post_mlp_layernorm" in found and not config.varied,
        bool(experts.shared_intermediate_size),
        bool(config.dense_layers),
        experts.biased,
        experts.by_logits,
        experts.early,
        bool(experts.limits),
        bool(experts.mixing_reach),
        experts.sigmoid,
        bool(experts.latent_size),
        bool(experts.router_size),
    )
    flags += bool(config.normed_after), bool(config.mlp_alone), config.stream_norms
    flags += config.qk_norm == "rotated", config.qk_norm == "heads"
    varied = config.varied and (
        bool(config.varied.input_size),
        bool(config.varied.input_ids),
        config.varied.sources != (*range(len(config.varied.sources)),),
    )
    selective = bool(config.selective)
    by_channel = config.delta_net and config.delta_net.by_channel and (True, bool(config.delta_net.rank))
    mamba = config.mamba and (config.mamba.normed, config.mamba.beside_attention)
    hybrid = (
        varied,
        bool(config.conv_layers),
        by_channel,
        mamba,
        selective,
        config.gated_attention,
        config.gated_heads,
        bool(config.other_heads),
        bool(config.compressed),
        config.residual_scales,
        bool(config.loops),
        bool(config.normalized),
        bool(config.mixtures),
    )
    latent = config.latents and bool(config.latents.q_lora_rank)
    cutoffs = config.altup and {cutoff is None for cutoff in config.altup.cutoffs}
    flags += (cutoffs and (True in cutoffs, False in cutoffs),)
    return *(name in found for name in names), *flags, *scores, config.qk_norm == "width", mixture, hybrid, latent


def make_ids(variant):
    """Return the LONG token ids of a variant; the short prompt is their beginning."""
    return np.random.RandomState(variant.seed).randint(vocab_size_of(variant), size=LONG).tolist()


def vocab_size_of(variant):
    """Return the number of tokens that a variant may write."""
    keys = ("output_vocab_size", "unpadded_vocab_size", "vocab_size")
    return next(variant.config[key] for key in keys if key in variant.config)


def weight_shapes(config):
    """Return the shape of every tensor by its name in a Hugging Face checkpoint, biases included.

    Of most families as conversion expects them: transformers, which loads them for the goldens, checks that.
    """
    if config["model_type"] not in LISTED:
        parsed = parse_config(config, "variant")
        turned = {
            part
            for one in architectures.linears(parsed)
            if one.transposed
            for shard in range(one.shards)
            for part in one.names(shard)
        }
        shapes = dict(expected_shapes(parsed))
        for one in architectures.linears(parsed):
            if one.cut > 1:
                shapes[f"{one.sources[0]}.weight"] = (one.rows[0] // one.cut, one.columns * one.cut)
        if parsed.embedded_ids:
            shapes = {whole_and_part(name)[0]: shape for name, shape in shapes.items()}
            embeddings = ("embed", "unembed") if parsed.mixtures else ("embed_tokens",)
            shapes |= {f"model.{name}.weight": (parsed.embedded_ids, parsed.hidden_size) for name in embeddings}
            # The columns of two linears are those of one tensor.
            halves = [name for name in shapes if name.endswith(".down_weight.weight")]
            shapes |= {name: (shapes[name][0], 2 * parsed.hidden_size) for name in halves}
        if any("*" in name for name in shapes):
            shapes = with_vectors(shapes)
        if any("^" in name for name in shapes):
            shapes = with_summands(shapes, config["type_vocab_size"])
        if parsed.projected_embedding:
            shapes = with_factors(shapes, config["word_embed_proj_dim"])
        return {name: shape[::-1] if name[:-7] in turned else shape for name, shape in shapes.items()}
    hidden, inner, heads = (config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads"))
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads", heads)
    attention_bias = config.get("attention_bias", False)
    qkv_bias = attention_bias or config["model_type"] == "qwen2"
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    linears = {
        "self_attn.q_proj": (heads * head_dim, hidden, qkv_bias),
        "self_attn.k_proj": (kv_heads * head_dim, hidden, qkv_bias),
        "self_attn.v_proj": (kv_heads * head_dim, hidden, qkv_bias),
        "self_attn.o_proj": (hidden, heads * head_dim, attention_bias),
        "mlp.gate_proj": (inner, hidden, config.get("mlp_bias", False)),
        "mlp.up_proj": (inner, hidden, config.get("mlp_bias", False)),
        "mlp.down_proj": (hidden, inner, config.get("mlp_bias", False)),
    }
    if config["model_type"] == "phi3":
        linears = {
            "self_attn.qkv_proj": ((heads + 2 * kv_heads) * head_dim, hidden, False),
            "mlp.gate_up_proj": (2 * inner, hidden, False),
        } | {name: linears[name] for name in ("self_attn.o_proj", "mlp.down_proj")}
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config["model_type"] == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns, has_bias) in linears.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"model.layers.{layer}.{name}.bias"] = (rows,)
        shapes |= {f"model.layers.{layer}.{name}.weight": (width,) for name, width in norms.items()}
    return shapes


def with_vectors(shapes):
    """Return shapes with those of a matrix and of the vectors that multiply its rows in the place of each."""
    found = {}
    for name, (rows, *others) in shapes.items():
        stem, _, part = name.rpartition(".")
        source, *vectors = stem.split("*")
        found[f"{source}.{part}"] = rows, *others
        found |= {f"{vector}.weight": (rows,) for vector in vectors}
    return found


def with_factors(shapes, columns):
    """Return shapes with those of the factors of each product in its place; `columns` are those of the first."""
    found = {}
    for name, (rows, *others) in shapes.items():
        source, is_product, factor = name.removesuffix(".weight").partition("@")
        if not is_product:
            found[name] = (rows, *others)
            continue
        turned = factor.removesuffix(".T")
        found[f"{source}.weight"] = rows, columns
        found[f"{turned}.weight"] = (columns, *others) if turned == factor else (*others, columns)
    return found


def with_summands(shapes, rows):
    """Return shapes with those of both matrices of each sum in its place; `rows` are those of the second."""
    found = {}
    for name, (count, *columns) in shapes.items():
        source, is_sum, other = name.partition("^")
        found[f"{source}.weight" if is_sum else name] = (count, *columns)
        if is_sum:
            found[other] = (rows, *columns)
    return found


def make_weights(variant):
    """Draw every tensor from the variant's seed, rounded to the type it is stored in.

    The spread is chosen so that each part matters: attention scores have a standard deviation of about 2,
    norm weights lie in 0.5..1.5, biases are a third of what they are added to, and tied embeddings are small
    beside what the layers add: larger ones make a model repeat its last token.
    """
    # RandomState's streams are frozen for ever, and uniform values need no library function that could differ
    # between platforms; the goldens rest on both.
    random = np.random.RandomState(variant.seed + 1)
    weights = {}
    config = parse_config(variant.config, variant.name)
    found = linears(config)
    names = {part: linear.name for linear in found for shard in range(linear.shards) for part in linear.names(shard)}
    sources = {part.split("*")[0]: name for part, name in names.items()}
    offsets = {norm.source.format(i): norm.offset for norm in norms(config) for i in range(40)}
    offsets |= {vector: 0.0 for part in names for vector in part.split("*")[1:]}
    for name, shape in weight_shapes(variant.config).items():
        values = random.uniform(-1, 1, shape)
        holder, _, part = name.rpartition(".")
        if holder in offsets and part == "weight":
            # Of a state, some heads forget quickly and some hardly.
            values = 2 * values - 3 if holder.endswith("A_log") else 1 - offsets[holder] + 0.5 * values
            if config.compressed and holder.endswith(("bias", "biases")):
                values = 0.4 * (values - 1)
            if holder.endswith("balancing_biases"):
                # transformers 5.24 overwrites the last one, that of no expert, with -1 where it reads a checkpoint.
                values = np.append(values[:-1] / 4 - 1, -1)
            if holder.endswith(BEGINNINGS):
                values = variant.config["initializer_range"] * (-values if "lambda" in holder else values)
            if config.mixtures:
                values = MIXING.get(holder.rpartition(".")[2], lambda values: values)(values)
            if holder.rpartition(".")[2] in ROUTING:
                values = ROUTING[holder.rpartition(".")[2]] * (values - 1)
            # Of many layers of streams, small differences would grow.
            if config.altup and config.num_hidden_layers > FEW and ("_coefs" in holder or "post_" in holder):
                values = 0.1 * values
        else:
            values = np.sqrt(3) * _deviation(config, sources.get(holder), name, shape) * values
        weights[name] = values.astype(np.float32).astype(DTYPES[variant.dtype])
    return weights


def _deviation(config, linear, name, shape):
    if name.endswith(".bias"):
        return 0.3
    if linear == "embed_tokens":
        return (0.1 if config.tie_word_embeddings else 0.5) / config.embedding_multiplier
    if linear == "router":
        return 2 / np.sqrt(shape[1])
    if name.endswith(("forget_weight.weight", "gain_weight.weight")):
        return 0.5 / np.sqrt(shape[1])
    makes_scores = any(part in name for part in ("q_proj", "k_proj", "qkv_proj"))
    size = np.sqrt(shape[1]) * (config.residual_multiplier if linear in OUTPUTS else 1)
    return (1.4 if makes_scores else 1.0) / size


def fingerprint(variant, weights):
    """Return a digest of a variant's config and weights: goldens of another checkpoint are told apart."""
    digest = hashlib.sha256(json.dumps(variant.config, sort_keys=True).encode())
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    return digest.hexdigest()


def read_golden(variant, weights):
    """Return the golden of a variant, once sure that it belongs to these weights."""
    with np.load(Path(__file__).parent / "goldens" / f"{variant.name}.npz") as file:
        golden = dict(file)
    assert golden["fingerprint"] == fingerprint(variant, weights), "stale golden: run scripts/make_goldens.py"
    return golden


def shard(weights):
    """Cut a dict of tensors into three, in the order of the names."""
    names = sorted(weights)
    third = -(-len(names) // 3)
    return [{n: weights[n] for n in names[start : start + third]} for start in range(0, len(names), third)]


def write_shards(folder, weights, stem, suffix, save):
    """Write ``stem-0000i-of-0000n.suffix`` files with ``save(tensors, path)``, and their index."""
    shards = shard(weights)
    weight_map = {}
    for i, tensors in enumerate(shards, start=1):
        file = f"{stem}-{i:05d}-of-{len(shards):05d}.{suffix}"
        save(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    total = sum(w.nbytes for w in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def write_tokenizer(folder, vocab_size):
    """Write a byte-level ``tokenizer.json`` with one token per id: ``<unk> <s> </s>``, the bytes, fillers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    specials = ["<unk>", "<s>", "</s>"]
    tokens = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"filler{i}" for i in range(len(tokens), vocab_size)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    names["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def stored(variant, weights):
    """Return a variant's weights as a checkpoint has them.

    gpt-oss stacks those of experts, transposed; Qwen3.5, Mistral Small 4 and Granite Swash do as they are. LFM2 has an
    axis more in those of convolutions, and so have Gated DeltaNet, whose other vectors have names of their own, and
    Mamba-2, some of whose linears share a tensor.
    """
    if variant.config["model_type"] in DELTA_NETS:
        taps = {name: values.reshape(-1, 1, TAPS) for name, values in weights.items() if "conv1d." in name}
        ends = (".A_log.weight", ".dt_bias.weight")
        found = {
            name.removesuffix(".weight") if name.endswith(ends) else name: values
            for name, values in (weights | taps).items()
        }
        if variant.config["model_type"] in ("olmo_hybrid", "kimi_linear", "bailing_hybrid"):
            found = with_taps_apart(found, parse_config(variant.config, variant.name).delta_net)
        if variant.config["model_type"] == "lara_mini":
            return _with_stacked_experts(with_whole_tensors(found))
        if variant.config["model_type"] == "kimi_linear":
            axes = {name: v[None, None, :, None] for name, v in found.items() if name.endswith("A_log")}
            return with_heads_in_one(_with_plain_biases(found | axes))
        if variant.config["model_type"] == "bailing_hybrid":
            return _with_ling_names(with_heads_in_one(found))
        return _with_stacked_experts(found) if variant.config["model_type"] == "qwen3_5_moe_text" else found
    if variant.config["model_type"] in GEMMAS:
        weights = _with_stacked_experts(weights)
        columns = {"modality_router": variant.config["hidden_size"], "prediction_coefs": 4, "correction_coefs": 4}
        weights |= {
            name: v.reshape(-1, columns[k]) for name, v in weights.items() if (k := name.split(".")[-2]) in columns
        }
        return {
            name.removesuffix(".weight") if name.endswith(("scalar.weight", "scale.weight")) else name: v
            for name, v in weights.items()
        }
    if variant.config["model_type"] == "embedding_gemma2_text":
        return {_name_in_blocks(name.removeprefix("model.")): v for name, v in weights.items()}
    if variant.config["model_type"] in ("flint", "kolibri1"):
        ends = (".softmax_offset.weight", ".expert_bias.weight")
        return {name.removesuffix(".weight") if name.endswith(ends) else name: v for name, v in weights.items()}
    if variant.config["model_type"] == "dory":
        ends = tuple(f"{end}.weight" for end in (*BEGINNINGS, *FACTORS))
        return {name.removesuffix(".weight") if name.endswith(ends) else name: v for name, v in weights.items()}
    if variant.config["model_type"] == "mistral4":
        return with_heads_in_one(_with_stacked_experts(weights))
    if variant.config["model_type"] == "inkling2_loop_text":
        return _with_names_of_inkling(variant.config, weights)
    if variant.config["model_type"] == "zaya":
        return _with_convolutions(_with_stacked_experts(weights))
    if variant.config["model_type"] == "nemotron_h":
        return with_whole_tensors(_with_plain_biases(weights))
    if variant.config.get("qk_layernorm"):
        return _with_heads_apart(weights)
    if variant.config["model_type"] in APERTUS:
        numbers = {name: v for name, v in weights.items() if name.endswith(".alpha_p.weight")}
        fixed = {"beta": 0.5, "eps": -1e-6}
        beside = {
            name.replace("alpha_p.weight", end): np.array(n, v.dtype)
            for name, v in numbers.items()
            for end, n in fixed.items()
        }
        return {name.removesuffix(".weight") if ".act_fn." in name else name: v for name, v in weights.items()} | beside
    if variant.config["model_type"] in MAMBAS:
        return with_whole_tensors(_with_stacks(weights))
    if variant.config["model_type"] == "jamba":
        inner = 2 * variant.config["hidden_size"]
        found = with_whole_tensors(weights)
        return {name: v.reshape(inner, -1) if name.endswith("A_log") else v for name, v in found.items()}
    if variant.config["model_type"] in GRANITES:
        return _with_stacks(weights)
    if variant.config["model_type"] in BIASED:
        weights = _with_plain_biases(weights)
    if variant.config["model_type"] in LATENTS:
        return with_heads_in_one(weights)
    if variant.config["model_type"] in ("lfm2", "lfm2_moe", "lfm3"):
        channels = variant.config["hidden_size"], 1, -1
        return {name: values.reshape(channels) if ".conv.conv." in name else values for name, values in weights.items()}
    if variant.config["model_type"] in ("gte", "new"):
        return with_whole_tensors(weights)
    if variant.config["model_type"] == "nomic_bert":
        return _with_rows_of_experts(weights)
    if variant.config["model_type"] == "mpnet":
        name = "mpnet.encoder.relative_attention_bias.weight"
        return weights | {name: weights[name].reshape(BUCKETS, -1)}
    if variant.config["model_type"] not in SINKS:
        return weights
    is_turned, found, stacks = variant.config["model_type"] == "gpt_oss", {}, {}
    for name, values in weights.items():
        stem, _, rest = name.partition(".experts.")
        if rest:
            expert, part, kind = rest.split(".")
            theirs = f"{stem}.experts.{part}" + ("_bias" if kind == "bias" else "")
            stacks.setdefault(theirs, {})[int(expert)] = values.T if is_turned else values
        else:
            found[name.removesuffix(".weight") if ".sinks." in name else name] = values
    # In the order of its axes: safetensors writes an array's memory as it is.
    return found | {
        name: np.ascontiguousarray(np.stack([parts[i] for i in range(len(parts))])) for name, parts in stacks.items()
    }


def _with_names_of_inkling(config, weights):
    """Return weights with the names and shapes that published files of Inkling 2 have."""
    H, G = config["num_attention_heads"], config["num_key_value_heads"] * config["head_dim"]
    rows = {"q_l2_clip.scale": H, "rel_l2_clip.scale": H, "rel_logits_proj.proj": config["d_rel"]}
    columns = {"static_w": G, "queries": config["hidden_size"], "query": config["hidden_size"]}
    whole = (*rows, *columns, "_weight", ".weight_proj", ".bias")
    found, stacks = {}, {}
    for name, values in weights.items():
        theirs = name.replace("model.", "model.llm.", 1)
        stem, is_expert, rest = theirs.removesuffix(".weight").partition(".experts.")
        if is_expert:
            stacks.setdefault(f"{stem}.experts.{rest.partition('.')[2]}", []).append(values)
            continue
        if stem.endswith(whole):
            theirs = stem
        for ending, count in rows.items():
            values = values.reshape(count, -1) if stem.endswith(ending) else values
        for ending, count in columns.items():
            values = values.reshape(-1, count) if stem.endswith(ending) and values.size > count else values
        if stem.endswith("sconv"):
            values = values.reshape(-1, 1, config.get("conv_kernel_size", TAPS))
        query = re.search(r"layers\.(\d+)\.(attention|mlp)_input\.query$", theirs)
        if query:
            kind, number = ("attn", int(query[1]) - 1) if query[2] == "attention" else ("mlp", int(query[1]))
            theirs = f"model.llm.attn_res.{kind}_queries.{number}"
            if number < 0:
                # The first layer reads the embedding alone.
                continue
        found[theirs] = values
    return found | {name: np.stack(parts) for name, parts in stacks.items()}


def _name_in_blocks(name):
    """Return the name that EmbeddingGemma 2 has for a tensor of Gemma 4's."""
    if name.endswith("scalar.weight"):
        return name.removesuffix(".weight")
    for part in ("per_layer_input_gate", "per_layer_projection.", "post_per_layer_input_norm"):
        name = name.replace(part, f"ple_block.{part}")
    return f"ple.{name}" if name.startswith("per_layer") else name


def _with_plain_biases(weights):
    """Return weights with the names and shapes that checkpoints have for biases of choices."""
    weights = {name: v[None] if ".moe_statics." in name else v for name, v in weights.items()}
    ends = tuple(f"{end}.weight" for end in ("expert_bias", "correction_bias"))
    return {name.removesuffix(".weight") if name.endswith(ends) else name: v for name, v in weights.items()}


def _with_ling_names(weights):
    """Return weights with the names of Ling 3.0's published files."""
    found = {}
    for name, values in weights.items():
        has_latents = name.replace("o_proj", "kv_b_proj") in weights
        theirs = name.replace("self_attn.o_proj", "attention.dense") if has_latents else name
        theirs = theirs.replace("self_attn", "attention").replace("embed_tokens", "word_embeddings")
        found[theirs.replace("e_score_correction_bias.weight", "expert_bias")] = values
    return found


def with_taps_apart(weights, net):
    """Return weights with the taps of queries, keys and values in tensors of their own, as OLMo Hybrid has them."""
    found = {}
    for name, values in weights.items():
        *sources, last = name.removesuffix(".weight").split("+")
        cuts = np.split(values, np.cumsum([net.key_size, net.key_size])) if sources else [values]
        found |= {f"{source}.weight" if sources else name: cut for source, cut in zip([*sources, last], cuts)}
    return found


def _with_convolutions(weights):
    """Return weights with those of compressed attention's convolutions as they are there, and plain vectors."""
    ends = ("_scale", "_bias", "_biases", ".temp", ".bias")
    found, heads = {}, {}
    for name, values in weights.items():
        stem, is_head, rest = name.partition(".conv_qk_grouped.")
        if is_head:
            head, part = rest.split(".")
            turned = values if part == "bias" else values.reshape(len(values), 2, -1).transpose(0, 2, 1)
            heads.setdefault(f"{stem}.conv_qk_grouped.{part}", {})[int(head)] = turned
        elif name.endswith("depthwise.weight"):
            found[name] = values.reshape(-1, 1, 2)
        else:
            plain = name.removesuffix(".weight")
            found[plain if plain.endswith(ends) else name] = values
    joined = {name: np.concatenate([parts[i] for i in sorted(parts)]) for name, parts in heads.items()}
    return found | {name: np.ascontiguousarray(values) for name, values in joined.items()}


def _with_rows_of_experts(weights):
    """Return weights with the rows of all experts of a layer in one matrix, as Nomic BERT has them."""
    found, stacks = {}, {}
    for name, values in weights.items():
        stem, is_expert, rest = name.removesuffix(".weight").partition(".experts.")
        if is_expert and rest != "bias":
            stacks.setdefault(f"{stem}.experts.{rest.partition('.')[2]}", []).append(values)
        else:
            found[f"{stem}.experts.bias" if is_expert else name] = values
    return found | {name: np.concatenate(parts) for name, parts in stacks.items()}


def _with_heads_apart(weights):
    """Return weights with the gains of each head in a tensor of its own."""
    found = {}
    for name, values in weights.items():
        sources = name.removesuffix(".weight").split("+")
        cuts = np.split(values, len(sources)) if len(sources) > 1 else [values]
        found |= {f"{source}.weight" if len(sources) > 1 else name: cut for source, cut in zip(sources, cuts)}
    return found


def with_whole_tensors(weights):
    """Return weights with the parts of each tensor in one, as Mamba-2 has them."""
    found, parts = {}, {}
    for name, values in weights.items():
        whole, part = whole_and_part(name)
        if part:
            parts.setdefault(whole, {})[part.first] = values
        elif name.endswith((".A_log.weight", ".dt_bias.weight", ".D.weight", ".conv1d.bias.weight")):
            found[name.removesuffix(".weight")] = values
        else:
            found[name] = values.reshape(-1, 1, TAPS) if ".conv1d." in name else values
    return found | {name: np.concatenate([rows[i] for i in sorted(rows)]) for name, rows in parts.items()}


def with_heads_in_one(weights):
    """Return weights with one tensor for the heads of latent attention: rows of a head's keys, then of its values."""
    found, heads = {}, {}
    for name, values in weights.items():
        stem, _, head = name.removesuffix(".weight").partition("_b_proj.")
        if not head:
            found[name] = values
            continue
        whole = f"{stem[:-1]}kv_b_proj.weight"
        heads.setdefault(whole, {})[int(head), stem[-1]] = values.T if stem[-1] == "k" else values
    return found | {name: np.concatenate([parts[key] for key in sorted(parts)]) for name, parts in heads.items()}


def _with_stacked_experts(weights):
    """Return weights with one tensor for all experts of a layer; rows of gates stand before those of their inputs."""
    found, stacks = {}, {}
    for name, values in weights.items():
        stem, _, rest = name.partition(".experts.")
        if rest:
            expert, part, _ = rest.split(".")
            stacks.setdefault(f"{stem}.experts.", {}).setdefault(int(expert), {})[part] = values
        else:
            found[name] = values
    for stem, experts in stacks.items():
        parts = [experts[i] for i in range(len(experts))]
        found[f"{stem}gate_up_proj"] = np.stack([np.concatenate((p["gate_proj"], p["up_proj"])) for p in parts])
        found[f"{stem}down_proj"] = np.stack([p["down_proj"] for p in parts])
    return found


def _with_stacks(weights):
    """Return weights with those of all experts of a layer in one tensor, whose name has no part for them."""
    found, stacks = {}, {}
    for name, values in weights.items():
        stem, between, rest = name.partition(".experts.")
        if between:
            stacks.setdefault(f"{stem}.{rest.partition('.')[2]}", []).append(values)
        else:
            found[name] = values
    return found | {name: np.stack(parts) for name, parts in stacks.items()}


def write_checkpoint(variant, folder):
    """Write the variant as a checkpoint in safetensors, without torch; return the folder.

    A variant of ``.bin`` files is written in safetensors too: only torch writes those faithfully.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = variant.config | {"torch_dtype": variant.dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = stored(variant, make_weights(variant))
    if variant.files.endswith("sharded"):
        write_shards(folder, weights, "model", "safetensors", save_file)
    else:
        save_file(weights, folder / "model.safetensors")
    write_tokenizer(folder, variant.config["vocab_size"])
    return folder
