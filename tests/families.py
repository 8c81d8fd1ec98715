"""Tiny random checkpoints of every supported family and variant, made from a seed with numpy alone.

``VARIANTS`` is the table: the family's own ``config.json`` keys (as transformers 4 writes them), the type the
weights are stored in, and how the files are cut. The sizes are awkward on purpose: an intermediate size and a
vocabulary that are multiples of nothing, and a head_dim that is not a multiple of 16.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from tinychat.conversion.convert import expected_shapes
from tinychat.models import architectures
from tinychat.models.architectures import linears, norms, parse_config

SHORT, LONG = 40, 200  # prompt lengths that are compared
SHORT_ROWS, LONG_ROWS = [39], [120, 199]  # the positions whose logits the goldens keep
NEW_TOKENS = 16
CONTEXT_SIZE = 256

# Whose tensors are listed here.
LISTED = ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

COMMON = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "hidden_act": "silu",
    "vocab_size": 517,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
MISTRAL = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}
QWEN2 = COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 40}
PHI3 = COMMON | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rms_norm_eps": 1e-5, "pad_token_id": 0}
SMOLLM3 = COMMON | {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e4,
    "no_rope_layer_interval": 2,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
GEMMA = COMMON | {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "num_key_value_heads": 1,
    "head_dim": 40,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
GEMMA2 = GEMMA | {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "num_key_value_heads": 2,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 28,
    "sliding_window": 22,
    "attn_logit_softcapping": 2.5,
    "final_logit_softcapping": 1.5,
}
GEMMA3 = GEMMA2 | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window_pattern": 3,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 5e3,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GRANITE = COMMON | {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "num_key_value_heads": 2,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
OLMO2 = COMMON | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_key_value_heads": 2}
TYPES = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
OLMO3 = OLMO2 | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 26} | TYPES
EXAONE4 = (
    COMMON
    | {
        "architectures": ["Exaone4ForCausalLM"],
        "model_type": "exaone4",
        "num_key_value_heads": 2,
        "head_dim": 40,
        "sliding_window": 23,
        "sliding_window_pattern": "LG",
        "rope_theta": 1e6,
    }
    | TYPES
)
MINISTRAL3 = COMMON | {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "rope_parameters": {
        "type": "yarn",
        "rope_theta": 1e5,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.4,
    },
}
GLM = COMMON | {
    "architectures": ["GlmForCausalLM"],
    "model_type": "glm",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "pad_token_id": 0,
}
STABLELM = COMMON | {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "num_key_value_heads": 2,
}
STARCODER2 = COMMON | {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 21,
    "tie_word_embeddings": True,
}
PHI = COMMON | {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    "num_key_value_heads": 2,
    "hidden_act": "gelu_new",
}
GPT_NEOX = COMMON | {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "rotary_pct": 0.5,
    "rotary_emb_base": 5000,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 120,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 256,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT_BIGCODE = GPT2 | {
    "architectures": ["GPTBigCodeForCausalLM"],
    "model_type": "gpt_bigcode",
    "activation_function": "gelu_pytorch_tanh",
}
GPTJ = GPT2 | {
    "architectures": ["GPTJForCausalLM"],
    "model_type": "gptj",
    "rotary_dim": 12,
    "n_inner": 172,
    "tie_word_embeddings": False,
}
OPT = COMMON | {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "ffn_dim": 172,
    "activation_function": "relu",
    "tie_word_embeddings": True,
}
BLOOM = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 120,
    "n_layer": 3,
    "n_head": 6,
    "seq_length": 256,
    "tie_word_embeddings": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MPT = {
    "architectures": ["MptForCausalLM"],
    "model_type": "mpt",
    "d_model": 120,
    "n_layers": 3,
    "n_heads": 6,
    "max_seq_len": 256,
    "attn_config": {"alibi": True, "attn_impl": "torch"},
    "tie_word_embeddings": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FALCON = COMMON | {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "multi_query": True,
    "parallel_attn": True,
    "new_decoder_architecture": False,
    "tie_word_embeddings": True,
}
FALCON_NEW = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "ffn_hidden_size": 172}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def longrope(pairs, **others):
    """Return a rope_scaling whose factors for short and for long sequences differ from pair to pair."""
    short, long = [1 + 0.05 * i for i in range(pairs)], [1.5 + 0.7 * i for i in range(pairs)]
    return {"type": "longrope", "short_factor": short, "long_factor": long, **others}


@dataclass(frozen=True)
class Variant:
    """One checkpoint: its name, ``config.json``, how the weights are stored, and what transformers takes instead."""

    name: str
    config: dict
    dtype: str = "float32"
    files: str = "safetensors"  # safetensors | safetensors-sharded | bin | bin-sharded
    theirs: dict | None = None

    @property
    def seed(self):
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "little")


VARIANTS = [
    Variant("llama1-mha", LLAMA | {"rms_norm_eps": 1e-6}, "float16", "bin-sharded"),
    Variant("llama2-mha", LLAMA | {"num_key_value_heads": 4, "rope_scaling": None}, "float16", "bin"),
    Variant("llama2-gqa", LLAMA | {"num_key_value_heads": 2}, "bfloat16", "safetensors-sharded"),
    Variant("tinyllama", LLAMA | {"num_attention_heads": 8, "num_key_value_heads": 1, "hidden_size": 192}),
    Variant(
        "smollm2",
        LLAMA
        | {
            "hidden_size": 144,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_theta": 1e5,
        },
        "bfloat16",
    ),
    Variant("codellama", LLAMA | {"rope_theta": 1e6, "vocab_size": 531}, "bfloat16", "bin"),
    Variant("llama3", LLAMA | {"num_key_value_heads": 2, "rope_theta": 5e5}, "bfloat16"),
    Variant(
        "llama3.1",
        LLAMA | {"num_key_value_heads": 2, "rope_scaling": LLAMA3_ROPE, "eos_token_id": [2, 3]},
        "bfloat16",
        "safetensors-sharded",
    ),
    Variant(
        "llama3.2",
        LLAMA
        | {
            "num_key_value_heads": 1,
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3_ROPE | {"factor": 32.0},
            "tie_word_embeddings": True,
        },
        "bfloat16",
    ),
    Variant("llama-linear", LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.5}}, "float16"),
    Variant(
        "llama-dynamic",
        LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
    ),
    Variant("llama-yarn", LLAMA | {"rope_scaling": YARN}),
    Variant("llama-yarn-mscale", LLAMA | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}),
    Variant(
        "llama-yarn-explicit",
        LLAMA
        | {
            "rope_scaling": YARN | {"attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        },
    ),
    Variant("llama-mqa", LLAMA | {"num_key_value_heads": 1}, "float16", "safetensors-sharded"),
    Variant("llama-attention-bias", LLAMA | {"num_key_value_heads": 2, "attention_bias": True}, "bfloat16"),
    Variant("llama-all-biases", LLAMA | {"attention_bias": True, "mlp_bias": True}, "float32", "bin-sharded"),
    Variant("llama-head-dim", LLAMA | {"hidden_size": 88, "head_dim": 24, "num_key_value_heads": 2}),
    # Wide enough for weight groups to share activation scales: four of 512 columns, three of 560.
    Variant(
        "llama-wide",
        LLAMA | {"hidden_size": 512, "intermediate_size": 560, "num_hidden_layers": 2, "num_attention_heads": 8},
        "bfloat16",
    ),
    Variant("mistral", MISTRAL | {"sliding_window": None, "head_dim": 32}, "bfloat16", "safetensors-sharded"),
    Variant("mistral-window", MISTRAL | {"sliding_window": 24, "head_dim": None}, "bfloat16"),
    Variant("qwen2", QWEN2, "bfloat16", "safetensors-sharded"),
    Variant("qwen2-tied", QWEN2 | {"tie_word_embeddings": True}, "float16"),
    Variant(
        "qwen2-window",
        QWEN2 | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    Variant("qwen2-yarn", QWEN2 | {"rope_scaling": {"type": "yarn"} | YARN}, "bfloat16"),
    Variant("qwen3", QWEN3, "bfloat16", "safetensors-sharded"),
    Variant("qwen3-tied", QWEN3 | {"tie_word_embeddings": True, "head_dim": 24}, "bfloat16"),
    Variant("qwen3-bias", QWEN3 | {"attention_bias": True}, "float32", "bin"),
    Variant(
        "qwen3-window",
        QWEN3
        | {
            "use_sliding_window": True,
            "sliding_window": 28,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "float16",
    ),
    Variant("phi3", PHI3 | {"num_key_value_heads": 2, "sliding_window": 30}, "bfloat16", "safetensors-sharded"),
    # 40 tokens have the short factors, 200 the long ones.
    Variant(
        "phi3-longrope", PHI3 | {"rope_scaling": longrope(12), "original_max_position_embeddings": 64}, "float16", "bin"
    ),
    Variant(
        "phi4-mini",
        PHI3
        | {
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.75,
            "rope_scaling": longrope(9, attention_factor=1.1),
            "original_max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
        "bfloat16",
    ),
    Variant("smollm3", SMOLLM3, "bfloat16", "safetensors-sharded"),
    Variant(
        "smollm3-window",
        SMOLLM3
        | {
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 25,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    Variant("gemma", GEMMA, "bfloat16"),
    # Scores beyond the cap, and layers with and without a window.
    Variant("gemma2", GEMMA2, "bfloat16", "safetensors-sharded"),
    Variant("gemma3", GEMMA3, "bfloat16"),
    Variant("gemma3-untied", GEMMA3 | {"tie_word_embeddings": False, "rope_scaling": None}, "float16"),
    Variant("granite", GRANITE | {"attention_bias": True, "mlp_bias": True}, "bfloat16"),
    # transformers has no such class; Granite is the same with its multipliers written out.
    Variant(
        "minicpm",
        LLAMA
        | {
            "architectures": ["MiniCPMForCausalLM"],
            "model_type": "minicpm",
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 32,
        },
        "bfloat16",
        theirs=GRANITE
        | {
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "attention_multiplier": 24**-0.5,
            "residual_multiplier": 1.4 / 3**0.5,
            "logits_scaling": 3.0,
        },
    ),
    Variant("olmo2", OLMO2 | {"rope_theta": 5e5}, "bfloat16", "safetensors-sharded"),
    Variant("olmo3", OLMO3 | {"rope_theta": 5e5, "rope_scaling": YARN}, "bfloat16"),
    Variant("exaone4", EXAONE4, "bfloat16"),
    Variant(
        "exaone4-full",
        EXAONE4 | {"sliding_window": None, "tie_word_embeddings": True, "layer_types": ["full_attention"] * 3},
    ),
    Variant("ministral3", MINISTRAL3, "bfloat16"),
    Variant("glm", GLM | {"attention_bias": True}, "bfloat16", "safetensors-sharded"),
    Variant("glm4", GLM | {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": False}),
    Variant("stablelm", STABLELM | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}, "float16"),
    Variant("stablelm-parallel", STABLELM | {"use_parallel_residual": True, "partial_rotary_factor": 0.5}),
    Variant("starcoder2", STARCODER2, "bfloat16"),
    Variant("phi", PHI, "float16"),
    Variant("gpt-neox", GPT_NEOX, "float16"),
    Variant("gpt-neox-serial", GPT_NEOX | {"use_parallel_residual": False, "attention_bias": False}),
    Variant("gpt2", GPT2, "float32"),
    Variant("starcoder", GPT_BIGCODE, "bfloat16"),
    Variant("gpt-bigcode-heads", GPT_BIGCODE | {"multi_query": False, "n_inner": 172}),
    Variant("gptj", GPTJ, "float16"),
    Variant("opt", OPT, "float16"),
    # Heads that are no power of two, whose slopes are of two series.
    Variant("bloom", BLOOM, "bfloat16"),
    Variant("mpt", MPT, "bfloat16"),
    Variant("falcon-7b", FALCON, "bfloat16"),
    Variant("falcon-40b", FALCON_NEW | {"tie_word_embeddings": False}, "bfloat16"),
    Variant("falcon-11b", FALCON_NEW | {"num_ln_in_parallel_attn": 1}),
]
NEWER = [variant for variant in VARIANTS if variant.config["model_type"] not in LISTED]
BY_NAME = {variant.name: variant for variant in VARIANTS}


def kind_of(variant):
    """Return what the types of a variant's parameters depend on: what is equal shares its compiled code."""
    config = parse_config(variant.config, variant.name)
    names = (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
        "embed_norm",
    )
    found = {norm.name for norm in norms(config)}
    flags = (config.layer_norm, config.gated, config.parallel, config.learned_positions, config.hidden_act)
    scores = (config.attention_softcap is None, config.logits_softcap is None, bool(config.alibi_slopes))
    return *(name in found for name in names), *flags, *scores, config.qk_norm == "width"


def make_ids(variant):
    """Return the LONG token ids of a variant; the short prompt is their beginning."""
    return np.random.RandomState(variant.seed).randint(variant.config["vocab_size"], size=LONG).tolist()


def weight_shapes(config):
    """Return the shape of every tensor by its name in a Hugging Face checkpoint, biases included.

    Of most families as conversion expects them: transformers, which loads them for the goldens, checks that.
    """
    if config["model_type"] not in LISTED:
        parsed = parse_config(config, "variant")
        turned = {
            part.format(i)
            for one in architectures.linears(parsed)
            if one.transposed
            for part in one.sources
            for i in range(9)
        }
        shapes = dict(expected_shapes(parsed))
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
    sources = {part.format(i): linear.name for linear in linears(config) for part in linear.sources for i in range(9)}
    offsets = {norm.source.format(i): norm.offset for norm in norms(config) for i in range(9)}
    for name, shape in weight_shapes(variant.config).items():
        values = random.uniform(-1, 1, shape)
        holder, _, part = name.rpartition(".")
        if holder in offsets and part == "weight":
            values = 1 - offsets[holder] + 0.5 * values
        else:
            values = np.sqrt(3) * _deviation(config, sources.get(holder), name, shape) * values
        weights[name] = values.astype(np.float32).astype(DTYPES[variant.dtype])
    return weights


def _deviation(config, linear, name, shape):
    if name.endswith(".bias"):
        return 0.3
    if linear == "embed_tokens":
        return (0.1 if config.tie_word_embeddings else 0.5) / config.embedding_multiplier
    makes_scores = any(part in name for part in ("q_proj", "k_proj", "qkv_proj"))
    size = np.sqrt(shape[1]) * (config.residual_multiplier if linear in ("o_proj", "down_proj") else 1)
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


def write_checkpoint(variant, folder):
    """Write the variant as a checkpoint in safetensors, without torch; return the folder.

    A variant of ``.bin`` files is written in safetensors too: only torch writes those faithfully.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = variant.config | {"torch_dtype": variant.dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = make_weights(variant)
    if variant.files.endswith("sharded"):
        write_shards(folder, weights, "model", "safetensors", save_file)
    else:
        save_file(weights, folder / "model.safetensors")
    write_tokenizer(folder, variant.config["vocab_size"])
    return folder
