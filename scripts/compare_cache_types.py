"""Compare the types of the KV cache by what a model says of a text.

    .venv/bin/python scripts/compare_cache_types.py MODEL TEXT [TEXT ...]

The texts, one after another, are read in one context. stdout has a markdown table: the Kullback-Leibler divergence from
the logits with a float32 cache, how often the most likely token is the same, and the perplexity.
"""

import argparse
from pathlib import Path

import numpy as np

import tinychat
from tinychat.engine.loading import load_engine
from tinychat.engine.sequence import new_sequence
from tinychat.kernels.sizes import STORAGE

EXACT = "f32"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of logits [T, vocab_size]."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the types of the KV cache.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("texts", metavar="TEXT", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=4096, help="read so many at most")
    arguments = parser.parse_args()
    with tinychat.load(arguments.model) as model:
        ids = model.tokenizer.encode("\n".join(path.read_text(encoding="utf-8") for path in arguments.texts))
        folder = model.path
    ids = ids[: arguments.tokens + 1]
    kinds = [EXACT, *(kv for kv in STORAGE if kv != EXACT)]
    sequences = {kv: new_sequence(load_engine(folder, kv=kv), len(ids)) for kv in kinds}
    found: dict[str, list[np.ndarray]] = {kv: [] for kv in kinds}
    size = sequences[EXACT].chunk_size
    for start in range(0, len(ids) - 1, size):
        part = ids[start : min(start + size, len(ids) - 1)]
        following = ids[start + 1 : start + 1 + len(part)]
        exact = log_softmax(sequences[EXACT].step(part, outputs=len(part)))
        for kv, sequence in sequences.items():
            other = exact if kv == EXACT else log_softmax(sequence.step(part, outputs=len(part)))
            divergence = (np.exp(exact) * (exact - other)).sum(axis=-1)
            same = exact.argmax(axis=-1) == other.argmax(axis=-1)
            found[kv].append(np.stack([divergence, same, -other[np.arange(len(part)), following]]))
    print(
        f"{len(ids) - 1} tokens\n\n| type | KL divergence | same most likely token | perplexity |\n|---|---:|---:|---:|"
    )
    for kv, parts in found.items():
        divergence, same, loss = np.concatenate(parts, axis=1).mean(axis=1)
        print(f"| {kv} | {divergence:.4f} | {100 * same:.1f} % | {np.exp(loss):.3f} |")


if __name__ == "__main__":
    main()
