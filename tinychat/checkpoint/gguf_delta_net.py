"""Gated DeltaNet in GGUF files: the changes that llama.cpp's converter makes to its tensors, undone.

Heads of values that read one head of keys stand apart in a file, those of a checkpoint side by side: the rows of what
makes them are reordered, and the columns of what reads them. Files of Qwen3-Next leave them side by side; their gates
are one tensor. Decays are stored as -exp(A); those with a bound as exp(A).
(github.com/ggml-org/llama.cpp: conversion/qwen.py.)
"""

from functools import partial

import numpy as np

from tinychat.checkpoint.adjusted import AdjustedTensor
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensor_part import ComputedRows, TensorPart
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError
from tinychat.models.delta_net import DeltaNet

DECAYS, OUTPUT = "ssm_a", "ssm_out"
# Of these, every row belongs to a head of values, or to a channel of one.
BY_HEAD = ("ssm_a", "ssm_dt", "ssm_beta", "ssm_alpha")
GATES, BOTH_GATES = ("ssm_beta", "ssm_alpha"), "ssm_ba"


def logarithms(tensor: Tensor, sign: int = -1) -> Tensor:
    """Return the A of decays that a file has as `sign` exp(A); NaN, which conversion refuses, where there is none."""
    return ComputedRows(tensor, partial(_logarithms, sign))


def _logarithms(sign: int, decays: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.log(sign * decays.astype(np.float32)))


def gates_of(both: Tensor, kind: str, net: DeltaNet) -> Tensor:
    """Return one kind of `GATES` of a tensor that has both, in turns for each head of keys."""
    if both.shape[0] != 2 * net.value_heads:
        raise CheckpointError(f"{both.path}: {BOTH_GATES} has {both.shape[0]} rows: download the file again")
    order = np.arange(2 * net.value_heads).reshape(net.key_heads, 2, -1).swapaxes(0, 1).reshape(-1)
    first = GATES.index(kind) * net.value_heads
    return TensorPart(AdjustedTensor(both, order=order), first, (net.value_heads, *both.shape[1:]))


def restored(tensor: Tensor, theirs: str, net: DeltaNet, stands_apart: bool = True) -> Tensor:
    """Return a tensor as the checkpoint has it; `theirs` is its name in the file.

    stands_apart : whether heads of values that read one head of keys do.
    """
    kind = theirs.split(".")[2] if theirs.startswith("blk.") else ""
    heads = np.arange(net.value_heads).reshape(-1, net.key_heads).T.reshape(-1)
    values = (heads[:, None] * net.value_dim + np.arange(net.value_dim)).reshape(-1)
    channels = np.concatenate([np.arange(2 * net.key_size), 2 * net.key_size + values])
    orders = {"attn_qkv": channels, "ssm_conv1d": channels, "attn_gate": values} | dict.fromkeys(BY_HEAD, heads)
    found = logarithms(tensor, 1 if net.decay_bound else -1) if kind == DECAYS else tensor
    if net.value_heads == net.key_heads or not stands_apart:
        return found
    if kind == OUTPUT:
        # Rows of another length are refused later, by their shape.
        return ComputedRows(found, lambda rows: rows[:, values] if rows.shape[1:] == values.shape else rows)
    return AdjustedTensor(found, order=orders[kind]) if kind in orders else found
