"""Digests of what a decoder computes: logits and greedy ids, over threads, chunks and rewrites of the cache."""

import hashlib
import itertools
from typing import NamedTuple

import engines
import numpy as np

METHODS = ("f32", "int8", "int4")
KVS = ("f32", "f16", "bf16", "int8")
THREADS = (1, 2)
CHUNKS = (1, 17, 256)
LENGTH = 150
NEW_TOKENS = 16


class Case(NamedTuple):
    """A checkpoint of `families`, how it is quantized, and the type of its cache."""

    name: str
    method: str
    kv: str

    def __str__(self):
        return "/".join(self)


def cases(names):
    """Return every case of these checkpoints."""
    return [Case(*parts) for parts in itertools.product(names, METHODS, KVS)]


SMALL = [
    Case("qwen3-window", "f32", "bf16"),
    Case("llama-wide", "int4", "int8"),
    Case("qwen2", "int8", "f16"),
    Case("llama3.2", "f32", "f32"),
]


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:32]


def run(sequence, ids, size):
    """Run ids after what is cached, in chunks; return the logits after the last."""
    for start in range(0, len(ids), size):
        logits = sequence.step(ids[start : start + size])
    return logits


def greedy(sequence, logits):
    ids = []
    for _ in range(NEW_TOKENS):
        ids.append(int(np.argmax(logits)))
        logits = sequence.step(ids[-1:])
    return ids


def states(sequence, size):
    """Yield name and value of what a decoder computes, one state of its cache after another."""
    ids = engines.draw_ids(sequence, LENGTH)
    logits = run(sequence, ids, size)
    yield "logits", digest(logits)
    yield "greedy", greedy(sequence, logits)
    sequence.rewind(67)
    yield "rewound", digest(run(sequence, ids[67:], size))
    sequence.drop(20, 61)
    yield "dropped", digest(run(sequence, ids[:40], size))
    sequence.resize(300)
    logits = run(sequence, ids[:60], size)
    yield "resized", digest(logits)
    yield "greedy after all", greedy(sequence, logits)


def digests_of(case, root):
    """Return the digests of a case; its model folder is kept under `root`."""
    folder = root / f"{case.name}-{case.method}"
    if not folder.exists():
        engines.convert_variant(case.name, case.method, folder)
    found = {}
    for threads, size in itertools.product(THREADS, CHUNKS):
        sequence = engines.open_sequence(folder, context_size=192, threads=threads, kv=case.kv)
        for state, value in states(sequence, size):
            found[f"{state}, {threads} threads, chunks of {size}"] = value
    return found
