"""The slow float64 version of a vision tower and its connector, written from the formulas with numpy alone."""

import numpy as np
import reference

AVERAGED = "mm_input_projection_weight"  # of a connector that averages


def tower_states(tensors, section, patches, grid):
    """Return the states behind a tower, and behind its layers that are asked for, [P, D] each, of patches [P, C p p].

    grid : their rows and columns; tensors : by their names in a checkpoint, without what stands before
    ``embeddings.``; section : ``vision_config``.
    """
    if "depth" in section:
        return qwen_states(tensors, section, patches, grid)
    if section.get("model_type") == "pixtral":
        return pixtral_states(tensors, section, patches, grid)
    heads, eps = section["num_attention_heads"], section["layer_norm_eps"]

    def linear(name, x):
        weight = tensors[f"{name}.weight"]
        return reference.linear(x, weight.reshape(len(weight), -1), tensors[f"{name}.bias"])

    def norm(name, x):
        return reference.layer_norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)

    positions = tensors["embeddings.position_embedding.weight"].astype(np.float64)
    if "num_patches" in section:
        positions = fitted_positions(positions, grid)
    x = linear("embeddings.patch_embedding", patches) + positions
    for layer in range(section["num_hidden_layers"]):
        name = f"encoder.layers.{layer}"
        y = norm(f"{name}.layer_norm1", x)
        q, k, v = (linear(f"{name}.self_attn.{part}_proj", y).reshape(len(x), heads, -1) for part in "qkv")
        attended = reference.attention(q, k, v, both_ways=True).reshape(len(x), -1)
        x = x + linear(f"{name}.self_attn.out_proj", attended)
        y = reference.gelu_tanh(linear(f"{name}.mlp.fc1", norm(f"{name}.layer_norm2", x)))
        x = x + linear(f"{name}.mlp.fc2", y)
    return [norm("post_layernorm", x)]


def qwen_states(tensors, section, patches, grid):
    """Return the same of the tower of Qwen3-VL and Qwen3.5, before squares are joined; patches are of one frame."""
    heads, (rows, columns) = section["num_heads"], grid

    def linear(name, x):
        return reference.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(name, x):
        return reference.layer_norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-6)

    frames = tensors["patch_embed.proj.weight"].astype(np.float64)
    embedded = sum(
        reference.linear(patches, frames[:, :, frame].reshape(len(frames), -1)) for frame in range(frames.shape[2])
    )
    positions = fitted_positions(tensors["pos_embed.weight"].astype(np.float64), grid, from_corners=True)
    x = embedded + tensors["patch_embed.proj.bias"].astype(np.float64) + positions
    pairs = section["hidden_size"] // heads // 2
    frequencies = 10000.0 ** (-np.arange(0, pairs, 2) / pairs)
    places = [(row, column) for row in range(rows) for column in range(columns)]
    angles = np.array([[*(row * frequencies), *(column * frequencies)] for row, column in places])
    stacked = []
    for layer in range(section["depth"]):
        name = f"blocks.{layer}"
        parts = linear(f"{name}.attn.qkv", norm(f"{name}.norm1", x)).reshape(len(x), 3, heads, -1)
        q, k, v = (parts[:, part] for part in range(3))
        q, k = (reference.rope(each, angles) for each in (q, k))
        attended = reference.attention(q, k, v, both_ways=True).reshape(len(x), -1)
        x = x + linear(f"{name}.attn.proj", attended)
        y = reference.gelu_tanh(linear(f"{name}.mlp.linear_fc1", norm(f"{name}.norm2", x)))
        x = x + linear(f"{name}.mlp.linear_fc2", y)
        if layer in section.get("deepstack_visual_indexes", ()):
            stacked.append(x)
    return [norm("merger.norm", x), *stacked]


def pixtral_states(tensors, section, patches, grid):
    """Return the same of Pixtral's tower."""
    heads, (rows, columns) = section["num_attention_heads"], grid
    activation = {"silu": reference.silu, "gelu": reference.gelu}[section["hidden_act"]]

    def linear(name, x):
        weight = tensors[f"{name}.weight"]
        return reference.linear(x, weight.reshape(len(weight), -1))

    def norm(name, x):
        return reference.rms_norm(x, tensors[f"{name}.weight"], 1e-5)

    x = norm("ln_pre", linear("patch_conv", patches))
    width = section["hidden_size"] // heads
    frequencies = section["rope_parameters"]["rope_theta"] ** (-np.arange(0, width, 2) / width)
    places = [(row, column) for row in range(rows) for column in range(columns)]
    angles = np.array([[*(row * frequencies[::2]), *(column * frequencies[1::2])] for row, column in places])
    for layer in range(section["num_hidden_layers"]):
        name = f"transformer.layers.{layer}"
        y = norm(f"{name}.attention_norm", x)
        q, k, v = (linear(f"{name}.attention.{part}_proj", y).reshape(len(x), heads, -1) for part in "qkv")
        q, k = (reference.rope(each, angles) for each in (q, k))
        attended = reference.attention(q, k, v, both_ways=True).reshape(len(x), -1)
        x = x + linear(f"{name}.attention.o_proj", attended)
        y = norm(f"{name}.ffn_norm", x)
        y = activation(linear(f"{name}.feed_forward.gate_proj", y)) * linear(f"{name}.feed_forward.up_proj", y)
        x = x + linear(f"{name}.feed_forward.down_proj", y)
    return [x]


def fitted_positions(positions, grid, from_corners=False):
    """Return the vectors of a grid's positions, [rows columns, D], from those of a square one."""
    side, found = round(len(positions) ** 0.5), []

    def weight(new, old, count):
        if from_corners:
            return max(0, 1 - abs(old - new * (side - 1) / max(count - 1, 1)))
        center, width = (new + 0.5) * side / count - 0.5, max(side / count, 1)
        return max(0, 1 - abs(old - center) / width)

    for row in range(grid[0]):
        for column in range(grid[1]):
            weights = [weight(row, y, grid[0]) * weight(column, x, grid[1]) for y in range(side) for x in range(side)]
            found.append(np.average(positions, axis=0, weights=weights))
    return np.stack(found)


def connector_rows(tensors, states, grid, scale_factor, text_eps=None):
    """Return the rows of the text model, [tokens, N], of states [P, D]; tensors : by their names behind the stem.

    text_eps : what the text model's norms add, which is that of Mistral's connector, too.
    """
    rows, merging = [], tensors.get("patch_merger.merging_layer.weight")
    if merging is not None:
        states = reference.rms_norm(states, tensors["norm.weight"], text_eps)
    for top in range(0, grid[0], scale_factor):
        for left in range(0, grid[1], scale_factor):
            square = [states[(top + y) * grid[1] + left + x] for y in range(scale_factor) for x in range(scale_factor)]
            rows.append(np.mean(square, axis=0) if AVERAGED in tensors else np.concatenate(square))
    x = np.stack(rows)
    if merging is not None:
        size = states.shape[1]
        by_channel = [patch * size + channel for channel in range(size) for patch in range(scale_factor**2)]
        x = reference.linear(x[:, by_channel], merging)
    if AVERAGED in tensors:
        gains = 1 + tensors["mm_soft_emb_norm.weight"].astype(np.float64)
        return reference.rms_norm(x, gains, 1e-6) @ tensors[AVERAGED].astype(np.float64)
    if "proj.weight" in tensors:
        return reference.linear(x, tensors["proj.weight"])
    for name, eps in (("layer_norm", 1e-5), ("norm", 1e-6)):
        if f"{name}.bias" in tensors:
            x = reference.layer_norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)
    first, second = ("linear_1", "linear_2") if "linear_1.weight" in tensors else ("linear_fc1", "linear_fc2")
    x = reference.linear(x, tensors[f"{first}.weight"], tensors.get(f"{first}.bias"))
    return reference.linear(reference.gelu(x), tensors[f"{second}.weight"], tensors.get(f"{second}.bias"))
