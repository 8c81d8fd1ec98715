"""The vision tower of Gemma 4 for `towers`: its section, tensors, processor, and the slow float64 version."""

import numpy as np
import reference

LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def section(hidden_size, heads, keys, head_dim, intermediate_size, layers, patch_size, **others):
    """Return a ``vision_config``."""
    return {
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": head_dim,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "patch_size": patch_size,
        "rms_norm_eps": 1e-6,
        **others,
    }


def shapes(parts):
    """Return the shapes of a tower's tensors by their names behind the stem."""
    D, F, p, d = (parts[key] for key in ("hidden_size", "intermediate_size", "patch_size", "head_dim"))
    queries, keys = (parts[key] * d for key in ("num_attention_heads", "num_key_value_heads"))
    found = {
        "patch_embedder.input_proj.weight": (D, 3 * p * p),
        "patch_embedder.position_embedding_table": (2, parts["position_embedding_size"], D),
    }
    if parts.get("standardize"):
        found |= {"std_bias": (D,), "std_scale": (D,)}
    sizes = ((queries, D), (keys, D), (keys, D), (D, queries), (F, D), (F, D), (D, F))
    for layer in range(parts["num_hidden_layers"]):
        name = f"encoder.layers.{layer}"
        found |= {f"{name}.{norm}.weight": (D,) for norm in NORMS}
        found |= {f"{name}.self_attn.{part}_norm.weight": (d,) for part in "qk"}
        for linear, shape in zip((*LINEARS, *MLP), sizes, strict=True):
            found[f"{name}.{linear}.linear.weight"] = shape
            if parts.get("use_clipped_linears"):
                found |= {f"{name}.{linear}.{bound}": () for bound in BOUNDS}
    return found


def tensors(parts):
    """Draw the tensors of a tower: bounds clip some numbers of most rows, gains are 0.5 to 1.5."""
    random, found = np.random.RandomState(7), {}
    for name, shape in shapes(parts).items():
        values = random.uniform(-1, 1, shape)
        if "norm" in name or name == "std_scale":
            values = 1 + values / 2
            if "q_norm" in name or "k_norm" in name:
                # Scores have a spread of about 2.
                values *= (2 / np.sqrt(parts["head_dim"])) ** 0.5
        elif name.endswith(BOUNDS):
            values = (1.5 + values / 2) * (-1 if name.endswith("min") else 1)
        elif "position" not in name and name != "std_bias":
            values *= 2 / np.sqrt(shape[1])
        found[name] = np.asarray(values)
    return found


def processor(parts, pooled):
    """Return a ``preprocessor_config.json``, with the keys that transformers writes."""
    return {
        "do_convert_rgb": True,
        "do_normalize": False,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.0, 0.0, 0.0],
        "image_processor_type": "Gemma4ImageProcessor",
        "image_seq_length": 70,
        "image_std": [1.0, 1.0, 1.0],
        "max_soft_tokens": 70,
        "patch_size": parts["patch_size"],
        "pooling_kernel_size": pooled,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }


def states(stored, parts, patches, grid):
    """Return the states behind a tower, [P, D], of patches [P, p p C]."""
    heads, keys, (rows, columns) = parts["num_attention_heads"], parts["num_key_value_heads"], grid

    def linear(name, x):
        bounds = [float(stored[f"{name}.{bound}"]) for bound in BOUNDS if f"{name}.{bound}" in stored]
        x = x.clip(*bounds[:2]) if bounds else x
        x = reference.linear(x, stored[f"{name}.linear.weight"])
        return x.clip(*bounds[2:]) if bounds else x

    def norm(name, x):
        return reference.rms_norm(x, stored[f"{name}.weight"], 1e-6)

    def turned(x, places):
        """Rotate the halves of these channels by places."""
        size = x.shape[-1]
        return reference.rope(x, places[:, None] * 100.0 ** (-np.arange(0, size, 2) / size))

    y, x = np.divmod(np.arange(rows * columns), columns)
    by_column, by_row = stored["patch_embedder.position_embedding_table"].astype(np.float64)
    hidden = reference.linear(patches, stored["patch_embedder.input_proj.weight"]) + by_column[x] + by_row[y]
    for layer in range(parts["num_hidden_layers"]):
        name = f"encoder.layers.{layer}"
        normed = norm(f"{name}.input_layernorm", hidden)
        q, k, v = (linear(f"{name}.self_attn.{part}_proj", normed) for part in "qkv")
        q, k, v = (each.reshape(len(hidden), count, -1) for each, count in ((q, heads), (k, keys), (v, keys)))
        q, k = norm(f"{name}.self_attn.q_norm", q), norm(f"{name}.self_attn.k_norm", k)
        v = reference.rms_norm(v, np.ones(v.shape[-1]), 1e-6)
        q, k = (
            np.concatenate([turned(*half) for half in zip(np.split(each, 2, axis=2), (x, y))], 2) for each in (q, k)
        )
        # Scores are not scaled: the reference divides them by the root of the heads' size.
        attended = reference.attention(q * q.shape[-1] ** 0.5, k, v, both_ways=True).reshape(len(hidden), -1)
        hidden = hidden + norm(f"{name}.post_attention_layernorm", linear(f"{name}.self_attn.o_proj", attended))
        normed = norm(f"{name}.pre_feedforward_layernorm", hidden)
        inner = reference.gelu_tanh(linear(f"{name}.mlp.gate_proj", normed)) * linear(f"{name}.mlp.up_proj", normed)
        hidden = hidden + norm(f"{name}.post_feedforward_layernorm", linear(f"{name}.mlp.down_proj", inner))
    return hidden


def rows(stored, projection, hidden, grid, pooled):
    """Return the rows of the text model, [tokens, N], of states [P, D]; projection : [N, D]."""
    squares = hidden.reshape(grid[0] // pooled, pooled, grid[1] // pooled, pooled, -1)
    means = squares.mean(axis=(1, 3)).reshape(-1, hidden.shape[1]) * hidden.shape[1] ** 0.5
    if "std_bias" in stored:
        means = (means - stored["std_bias"]) * stored["std_scale"]
    return reference.linear(reference.rms_norm(means, np.ones(means.shape[1]), 1e-6), projection)
