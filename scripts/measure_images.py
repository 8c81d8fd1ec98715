"""Measure how long a model that sees takes for an image, beside transformers on the same weights.

``scripts/measure_images.py`` makes the vision tower of SmolVLM-256M with random weights and a text model of two layers,
which needs torch and transformers (``scripts/environment live``), and converts them; ``--shape`` makes another one. For
a photo of 12 megapixels, or ``--photo HEIGHT WIDTH``, it tells the seconds of its preparation, and of a tile in the
vision tower and connector, in turns with transformers in float32 and bfloat16. ``--model FOLDER`` measures a converted
model by itself.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.conversion.convert import convert
from tinychat.images.encoder import ImageEncoder
from tinychat.images.image import Image
from tinychat.images.preparation import plan, prepare
from tinychat.machine import available_cores

PHOTO = 3024, 4032
TEXT = {
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
}


class Shape(NamedTuple):
    """A model that sees: its type and class in transformers, parts of its configuration, and its image processor's."""

    model_type: str
    name: str
    hidden_size: int
    vision: dict[str, object]
    others: dict[str, object]
    processor: dict[str, object]


SHAPES = {
    "smolvlm-256m": Shape(
        "smolvlm",
        "SmolVLM",
        576,
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"image_size": 512, "patch_size": 16},
        {"scale_factor": 4, "image_token_id": 1000},
        {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 2048}, "resample": 1}
        | {"max_image_size": {"longest_edge": 512}},
    ),
    "qwen3.5-0.8b": Shape(
        "qwen3_5",
        "Qwen3_5",
        1024,
        {"hidden_size": 768, "intermediate_size": 3072, "depth": 12, "num_heads": 12, "out_hidden_size": 1024},
        {"image_token_id": 1000},
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "merge_size": 2}
        | {"size": {"shortest_edge": 65536, "longest_edge": 1 << 24}},
    ),
    "gemma3-4b": Shape(
        "gemma3",
        "Gemma3",
        2560,
        {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
        | {"image_size": 896, "patch_size": 14, "vision_use_head": False},
        {"image_token_index": 1000, "mm_tokens_per_image": 256},
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="smolvlm-256m")
    parser.add_argument("--photo", type=int, nargs=2, default=PHOTO, metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cores())
    asked = parser.parse_args()
    photo = Image(np.random.default_rng(1).integers(0, 256, (*asked.photo, 3), np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        made = None if asked.model else made_model(SHAPES[asked.shape], Path(folder))
        encoder = ImageEncoder(asked.model or made[0], asked.threads)
        planned = plan(*asked.photo, encoder.vision.preparation)
        seconds: dict[str, list[float]] = {}
        for _ in range(asked.rounds):
            began = perf_counter()
            tiles = prepare(photo, encoder.vision.preparation).tiles
            seconds.setdefault("preparation of the photo", []).append(perf_counter() - began)
        runs: dict[str, Callable[[], Any]] = {"a tile, tinychat": lambda: encoder.rows(tiles[0], planned.grids[0])}
        if made:
            runs |= torch_runs(made[1], tiles[0], planned.grids[0], asked.threads)
        for run in runs.values():
            run()
        for _ in range(asked.rounds):
            for name, run in runs.items():
                began = perf_counter()
                run()
                seconds.setdefault(name, []).append(perf_counter() - began)
    tokens = sum(rows * columns for rows, columns in planned.grids) // encoder.vision.scale_factor**2
    height, width = asked.photo
    print(f"{width} x {height} pixels: {len(planned.grids)} tiles, {tokens} image tokens, {asked.threads} threads")
    for name, found in seconds.items():
        print(f"{name:32} {median(found):.3f} s")


def made_model(shape: Shape, folder: Path) -> tuple[Path, Any]:
    """Return a converted model of random weights, and transformers' model of the same."""
    import torch
    import transformers

    text = {**TEXT, "hidden_size": shape.hidden_size}
    text |= {"model_type": "llama"} if shape.model_type == "smolvlm" else {}
    config = transformers.AutoConfig.for_model(
        shape.model_type, text_config=text, vision_config=shape.vision, **shape.others
    )
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{shape.name}ForConditionalGeneration")(config).eval()
    checkpoint = folder / "checkpoint"
    theirs.save_pretrained(checkpoint)
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(shape.processor))
    return convert(checkpoint, folder / "model", "int8", "plain"), theirs


def torch_runs(
    theirs: Any, tile: NDArray[np.float32], grid: tuple[int, int], threads: int
) -> dict[str, Callable[[], Any]]:
    """Return functions that run a tile through transformers' vision tower and connector."""
    import torch

    torch.set_num_threads(threads)
    rows, columns = grid
    if "Qwen" in type(theirs).__name__:
        # A still image is in both frames.
        pixels = torch.from_numpy(np.repeat(tile.reshape(len(tile), 3, 1, -1), 2, axis=2).reshape(len(tile), -1))
        others = {"image_grid_thw": torch.tensor([[1, rows, columns]])}
    else:
        side = int((tile.shape[1] // 3) ** 0.5)
        whole = tile.reshape(rows, columns, 3, side, side).transpose(2, 0, 3, 1, 4)
        pixels, others = torch.from_numpy(whole.reshape(1, 3, rows * side, columns * side)), {}
        pixels = pixels[None] if "SmolVLM" in type(theirs).__name__ else pixels
    copies = {"float32": theirs, "bfloat16": type(theirs)(theirs.config).to(torch.bfloat16).eval()}

    def run(model: Any) -> Any:
        with torch.inference_mode():
            return model.get_image_features(pixels.to(next(model.parameters()).dtype), **others)

    return {f"a tile, transformers {name}": lambda model=model: run(model) for name, model in copies.items()}


if __name__ == "__main__":
    main()
