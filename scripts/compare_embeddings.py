"""Compare the vectors of an embedding model in few bits with those in float32.

``scripts/compare_embeddings.py CHECKPOINT TEXTS`` embeds each line of TEXTS. For each format: the cosine of the vectors
to those of float32, how often the nearest other text is the same one, tokens a second. Formats take turns.
"""

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

import tinychat

QUANTS = ("f32", "int8", "int4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    texts = [line for line in asked.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        folders = {quant: tinychat.convert(asked.checkpoint, Path(folder) / quant, quant=quant) for quant in QUANTS}
        models = {quant: tinychat.load(path) for quant, path in folders.items()}
        ids = [models["f32"].embedding.text_ids(text) for text in texts]
        vectors, seconds = {}, {quant: [] for quant in QUANTS}
        for _ in range(asked.rounds):
            for quant, model in models.items():
                began = perf_counter()
                vectors[quant] = model.embed(ids)
                seconds[quant].append(perf_counter() - began)
    tokens = sum(map(len, ids))
    print(f"{len(texts)} texts, {tokens} tokens\nformat  cosine, least  cosine, mean  same nearest  tokens/s")
    for quant, found in vectors.items():
        cosines = (found * vectors["f32"]).sum(axis=1)
        same = (nearest(found) == nearest(vectors["f32"])).mean()
        rate = tokens / np.median(seconds[quant])
        print(f"{quant:6}  {cosines.min():13.5f}  {cosines.mean():12.5f}  {same:12.1%}  {rate:8.0f}")


def nearest(vectors: np.ndarray) -> np.ndarray:
    """Return for each vector the number of the nearest other one."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    return cosines.argmax(axis=1)


if __name__ == "__main__":
    main()
