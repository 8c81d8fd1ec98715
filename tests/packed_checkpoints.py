"""Checkpoints of four-bit weights, packed by the published layouts of GPTQ, AWQ, compressed-tensors and mlx.

Each is made of a checkpoint of families.py; the values that its codes stand for are computed here, by its own formula.
"""

import json

import families
import numpy as np
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

# All sizes multiples of 32, and tied, as those of models that are published so.
VARIANT = families.Variant(
    "packed",
    families.BY_NAME["qwen3-tied"].config
    | {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16, "vocab_size": 272},
)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(codes, bits, order=None):
    """Pack codes [R, C] along their columns into int32 [R, C * bits / 32]; number i of a word from ``order[i]``."""
    if 32 % bits:
        # One after another, wherever a number ends.
        stream = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1
        return np.packbits(stream.reshape(len(codes), -1), axis=1, bitorder="little").view(np.int32)
    per = 32 // bits
    rows = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per))).reshape(len(codes), -1, per).astype(np.uint32)
    words = np.zeros(rows.shape[:2], np.uint32)
    for i in range(per):
        words |= rows[..., i if order is None else order[i]] << np.uint32(bits * i)
    return words.view(np.int32)


def draw(rng, N, K, group, bits, symmetric):
    """Return codes [N, K], scales [N, G] in float16 and zeros [N, G]."""
    codes = rng.integers(0, 1 << bits, (N, K), np.uint8)
    scales = (rng.uniform(0.5, 1.5, (N, K // group)) * 0.02).astype(np.float16)
    zeros = np.full((N, K // group), 1 << (bits - 1)) if symmetric else rng.integers(1, 1 << bits, (N, K // group))
    return codes, scales, zeros


def meant(codes, scales, zeros, groups):
    """Return ``scale * (code - zero)``, of the group of each column."""
    return scales.astype(np.float64)[:, groups] * (codes.astype(np.float64) - zeros[:, groups])


def gptq(rng, N, K, group, bits=4, symmetric=False, version=1, ordered=True):
    """Return the tensors of a weight, and its values."""
    codes, scales, zeros = draw(rng, N, K, group, bits, symmetric)
    groups = np.arange(K) // group
    groups = groups if ordered else rng.permutation(groups)
    tensors = {
        "qweight": pack(codes, bits).T,
        "qzeros": pack((zeros - (version == 1)).T, bits),
        "scales": scales.T,
        "g_idx": groups.astype(np.int32),
    }
    return tensors, meant(codes, scales, zeros, groups)


def awq(rng, N, K, group):
    """Return the tensors of a weight, and its values."""
    codes, scales, zeros = draw(rng, N, K, group, 4, False)
    tensors = {"qweight": pack(codes.T, 4, AWQ_ORDER), "qzeros": pack(zeros.T, 4, AWQ_ORDER), "scales": scales.T}
    return tensors, meant(codes, scales, zeros, np.arange(K) // group)


def compressed(rng, N, K, group, symmetric=True, dtype=bfloat16):
    """Return the tensors of a weight, and its values."""
    codes, scales, zeros = draw(rng, N, K, group, 4, symmetric)
    scales = scales.astype(dtype)
    tensors = {"weight_packed": pack(codes, 4), "weight_scale": scales, "weight_shape": np.array([N, K])}
    if not symmetric:
        # Packed along the rows.
        tensors["weight_zero_point"] = np.ascontiguousarray(pack(zeros.T, 4).T)
    return tensors, meant(codes, scales, zeros, np.arange(K) // group)


def mlx(rng, N, K, group, bits=4, dtype=np.float16):
    """Return the tensors of a weight, and its values."""
    codes, scales, _ = draw(rng, N, K, group, bits, True)
    scales, biases = scales.astype(dtype), (-scales * 7.3).astype(dtype)
    tensors = {"weight": pack(codes, bits).view(np.uint32), "scales": scales, "biases": biases}
    groups = np.arange(K) // group
    return tensors, scales.astype(np.float64)[:, groups] * codes + biases.astype(np.float64)[:, groups]


# How each is described in config.json.
SETTINGS = {
    "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}},
    "awq": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}},
    "compressed": {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "input_activations": None,
                    "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
                }
            },
            "ignore": ["lm_head"],
        }
    },
    "mlx": {"quantization": {"group_size": 32, "bits": 4}, "quantization_config": {"group_size": 32, "bits": 4}},
}
MAKERS = {"gptq": gptq, "awq": awq, "compressed": compressed, "mlx": mlx}


def write_checkpoint(kind, variant, folder, rng):
    """Write a variant whose linears are packed; return the values of each of its tensors."""
    families.write_checkpoint(variant, folder)
    config = json.loads((folder / "config.json").read_text()) | SETTINGS[kind]
    (folder / "config.json").write_text(json.dumps(config))
    tensors, values = load_file(folder / "model.safetensors"), {}
    for name in [*tensors]:
        values[name] = tensors[name].astype(np.float64)
        if name.endswith("proj.weight") or (kind == "mlx" and "embed" in name):
            rows, columns = tensors.pop(name).shape
            parts, values[name] = MAKERS[kind](rng, rows, columns, 32)
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": np.ascontiguousarray(data) for part, data in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    return values
