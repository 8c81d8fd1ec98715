"""The slow float64 version of a vision tower and its connector, written from the formulas with numpy alone."""

import numpy as np
import reference


def tower_states(tensors, section, patches):
    """Return the states behind a tower, [P, D], of patches [P, C p p].

    tensors : by their names in a checkpoint, without what stands before ``embeddings.``; section : ``vision_config``.
    """
    heads, eps = section["num_attention_heads"], section["layer_norm_eps"]

    def linear(name, x):
        weight = tensors[f"{name}.weight"]
        return reference.linear(x, weight.reshape(len(weight), -1), tensors[f"{name}.bias"])

    def norm(name, x):
        return reference.layer_norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)

    x = linear("embeddings.patch_embedding", patches) + tensors["embeddings.position_embedding.weight"]
    for layer in range(section["num_hidden_layers"]):
        name = f"encoder.layers.{layer}"
        y = norm(f"{name}.layer_norm1", x)
        q, k, v = (linear(f"{name}.self_attn.{part}_proj", y).reshape(len(x), heads, -1) for part in "qkv")
        attended = reference.attention(q, k, v, both_ways=True).reshape(len(x), -1)
        x = x + linear(f"{name}.self_attn.out_proj", attended)
        y = reference.gelu_tanh(linear(f"{name}.mlp.fc1", norm(f"{name}.layer_norm2", x)))
        x = x + linear(f"{name}.mlp.fc2", y)
    return norm("post_layernorm", x)


def connector_rows(weight, states, scale_factor):
    """Return the rows of the text model, [tokens, N], of states [P, D]; weight : [N, D * scale_factor**2]."""
    grid = round(len(states) ** 0.5)
    rows = []
    for top in range(0, grid, scale_factor):
        for left in range(0, grid, scale_factor):
            square = [states[(top + y) * grid + left + x] for y in range(scale_factor) for x in range(scale_factor)]
            rows.append(np.concatenate(square))
    return reference.linear(np.stack(rows), weight)
