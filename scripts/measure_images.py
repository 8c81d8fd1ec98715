"""Measure how long a model that sees takes for an image, beside transformers on the same weights.

``scripts/measure_images.py`` makes SmolVLM-256M's shape with random weights, which needs torch and transformers
(``scripts/environment live``), and converts it. For a photo of 12 megapixels it tells the seconds of its preparation,
of a tile in the vision tower, in turns with transformers in float32 and bfloat16, and of all up to the first token.
``--model FOLDER`` measures a converted model by itself.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from tinychat.conversion.convert import convert
from tinychat.images.encoder import ImageEncoder
from tinychat.images.image import Image
from tinychat.images.preparation import plan, prepare
from tinychat.machine import available_cores

PHOTO = 3024, 4032
TEXT = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49280,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
}
TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 512,
    "patch_size": 16,
}
PROCESSOR = {
    "image_processor_type": "SmolVLMImageProcessor",
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
    "resample": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cores())
    asked = parser.parse_args()
    photo = Image(np.random.default_rng(1).integers(0, 256, (*PHOTO, 3), np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        made = None if asked.model else made_model(Path(folder))
        encoder = ImageEncoder(asked.model or made[0], asked.threads)
        planned = plan(*PHOTO, encoder.vision.preparation)
        seconds: dict[str, list[float]] = {}
        for _ in range(asked.rounds):
            began = perf_counter()
            tiles = prepare(photo, encoder.vision.preparation).tiles
            seconds.setdefault("preparation of the photo", []).append(perf_counter() - began)
        runs: dict[str, Callable[[], Any]] = {"a tile, tinychat": lambda: encoder.rows(tiles[0], planned.grids[0])}
        if made:
            runs |= torch_runs(made[1], asked.threads)
        for run in runs.values():
            run()
        for _ in range(asked.rounds):
            for name, run in runs.items():
                began = perf_counter()
                run()
                seconds.setdefault(name, []).append(perf_counter() - began)
    tokens = sum(rows * columns for rows, columns in planned.grids) // encoder.vision.scale_factor**2
    print(f"{PHOTO[1]} x {PHOTO[0]} pixels: {len(planned.grids)} tiles, {tokens} image tokens, {asked.threads} threads")
    for name, found in seconds.items():
        print(f"{name:32} {median(found):.3f} s")


def made_model(folder: Path) -> tuple[Path, Any]:
    """Return a converted model of random weights in SmolVLM-256M's shape, and transformers' model of the same."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(
        "smolvlm", text_config=TEXT, vision_config=TOWER, scale_factor=4, image_token_id=49190
    )
    torch.manual_seed(1)
    theirs = transformers.SmolVLMForConditionalGeneration(config).eval()
    checkpoint = folder / "checkpoint"
    theirs.save_pretrained(checkpoint)
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return convert(checkpoint, folder / "model", "int8"), theirs


def torch_runs(theirs: Any, threads: int) -> dict[str, Callable[[], Any]]:
    """Return functions that run a tile through transformers' vision tower and connector."""
    import torch

    torch.set_num_threads(threads)
    size = theirs.config.vision_config.image_size
    pixels = torch.rand(1, 1, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    copies = {"float32": theirs, "bfloat16": type(theirs)(theirs.config).to(torch.bfloat16).eval()}

    def run(model: Any) -> Any:
        with torch.inference_mode():
            return model.get_image_features(pixels.to(next(model.parameters()).dtype))

    return {f"a tile, transformers {name}": lambda model=model: run(model) for name, model in copies.items()}


if __name__ == "__main__":
    main()
