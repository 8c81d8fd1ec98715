"""Compare the vectors of an embedding model in few bits with those in float32.

``scripts/compare_embeddings.py CHECKPOINT TEXTS`` embeds each line of TEXTS. For each format: the cosine of the vectors
to those of float32, how often the nearest other text is the same one, tokens a second. Formats take turns. With
``--torch``, transformers takes its turn too, in float32 and bfloat16: means of batches of 32 texts, the longest first.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

import tinychat

QUANTS = ("f32", "int8", "int4")
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    texts = [line for line in asked.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        folders = {quant: tinychat.convert(asked.checkpoint, Path(folder) / quant, quant=quant) for quant in QUANTS}
        models = {quant: tinychat.load(path, threads=asked.threads) for quant, path in folders.items()}
        ids = [models["f32"].embedding.text_ids(text) for text in texts]
        runs: dict[str, Callable[[], np.ndarray]] = {quant: partial(models[quant].embed, ids) for quant in QUANTS}
        if asked.torch:
            runs |= torch_runs(asked.checkpoint, ids, asked.threads)
        vectors, seconds = {}, {name: [] for name in runs}
        for _ in range(asked.rounds):
            for name, run in runs.items():
                began = perf_counter()
                vectors[name] = run()
                seconds[name].append(perf_counter() - began)
    tokens = sum(map(len, ids))
    print(f"{len(texts)} texts, {tokens} tokens\n{'format':14}  cosine, least  cosine, mean  same nearest  tokens/s")
    for name, found in vectors.items():
        cosines = (found * vectors["f32"]).sum(axis=1)
        same = (nearest(found) == nearest(vectors["f32"])).mean()
        rate = tokens / np.median(seconds[name])
        print(f"{name:14}  {cosines.min():13.5f}  {cosines.mean():12.5f}  {same:12.1%}  {rate:8.0f}")


def torch_runs(checkpoint: Path, ids: Sequence[list[int]], threads: int | None) -> dict[str, Callable[[], np.ndarray]]:
    """Return functions that embed the texts with transformers."""
    import torch
    import transformers

    if threads is not None:
        torch.set_num_threads(threads)
    order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))

    def run(model: transformers.PreTrainedModel) -> np.ndarray:
        vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
        for first in range(0, len(order), BATCH):
            part = order[first : first + BATCH]
            padded = torch.zeros(len(part), len(ids[part[0]]), dtype=torch.long)
            mask = torch.zeros_like(padded)
            for row, number in enumerate(part):
                padded[row, : len(ids[number])] = torch.tensor(ids[number])
                mask[row, : len(ids[number])] = 1
            with torch.inference_mode():
                states = model(padded, attention_mask=mask).last_hidden_state.float() * mask[..., None]
                vectors[part] = torch.nn.functional.normalize(states.sum(1), dim=1).numpy()
        return vectors

    types = (torch.float32, torch.bfloat16)
    load = transformers.AutoModel.from_pretrained
    return {f"torch {str(kind)[6:]}": partial(run, load(checkpoint, dtype=kind).eval()) for kind in types}


def nearest(vectors: np.ndarray) -> np.ndarray:
    """Return for each vector the number of the nearest other one."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    return cosines.argmax(axis=1)


if __name__ == "__main__":
    main()
