"""GGUF files of the checkpoints of families.py, written as llama.cpp's converter does, by the package `gguf`."""

import families
import gguf
import numpy as np

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3"}
ARCHITECTURES |= {"smollm3": "smollm3"}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "gate_up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    """Return what llama.cpp calls a tensor of a Hugging Face checkpoint."""
    stem, kind = name.rsplit(".", 1)
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    layer = stem.split(".")[2]
    return f"blk.{layer}.{NAMES[stem.rsplit('.', 1)[1]]}.{kind}"


def interleaved(rows, heads):
    """Bring channel i + d/2 of each head behind channel i."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def byte_level_tokens(vocab_size):
    """Return the vocabulary of `families.write_tokenizer`, and the kind of each token."""
    from tokenizers import pre_tokenizers

    tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"filler{i}" for i in range(len(tokens), vocab_size)]
    return tokens, [3, 3, 3] + [1] * (vocab_size - 3)


def mixture(name):
    """Return types of tensors of codes by the checkpoint's names: every form, mixed within a linear and over layers."""
    kinds = {"q_proj": "Q4_1", "k_proj": "Q4_0", "v_proj": "Q8_0", "o_proj": "Q4_0", "gate_proj": "Q4_1"}
    kinds |= {"up_proj": "Q4_1", "down_proj": "Q5_1", "embed_tokens": "Q8_0", "lm_head": "Q5_0"}
    if ".1." in name and "down_proj" in name:
        return "Q4_0"
    return next((kind for part, kind in kinds.items() if part in name), "F32")


def write_variant(variant, path, kind_of=lambda name: "F32", **tensors):
    """Write a variant as a GGUF file with `tensors` beside its own.

    kind_of : the type of each tensor by its name in the checkpoint; float32 where its rows make no whole blocks.
    """
    config, weights = variant.config, families.make_weights(variant)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1)))
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    tokens, kinds = byte_level_tokens(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", values)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "longrope":
        for kind in ("short", "long"):
            factors = np.array(scaling[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        if "attention_factor" in scaling:
            writer.add_rope_scaling_attn_factors(scaling["attention_factor"])
    for name, values in weights.items():
        values = values.astype(np.float32)
        if architecture in ("llama", "smollm3"):
            values = interleaved(values, heads) if "q_proj" in name else values
            values = interleaved(values, kv_heads) if "k_proj" in name else values
        kind = gguf.GGMLQuantizationType[kind_of(name)]
        if values.ndim < 2 or values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    write(writer)
    return path


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


def write_byte_pairs(path, pre):
    """Write a vocabulary whose merges show how the pre-tokenizer of a name cuts text."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġ12345", "Ġx", "don't", "ĊĊ"]
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
