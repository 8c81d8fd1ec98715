"""Write a Hugging Face checkpoint of random bfloat16 weights in the shape of a real model.

    .venv/bin/python scripts/make_random_checkpoint.py tinyllama-1.1b random-1.1b

Speed does not depend on the values of the weights, so this is what comparisons run on. The scales are those of a
trained model: activations keep their size from layer to layer. The weights are written as they are drawn: memory
stays small, whatever the shape. ``../shared/data/llama2-tokenizer.model`` (or ``--tokenizer FILE``) is copied along
when it is there; vocabularies larger than its 32,000 pieces have ids without text.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tinychat.errors import SettingError
from tinychat.models.architectures import linears, norms, read_config
from tinychat.models.config import ModelConfig
from tinychat.models.shapes import SHAPES, config_of

TOKENIZER = Path(__file__).resolve().parents[2] / "shared" / "data" / "llama2-tokenizer.model"
VALUES_AT_ONCE = 1 << 24
BYTES_PER_VALUE = 2


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight, by the checkpoint's own names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for linear in linears(config):
        for shard in range(linear.shards):
            for source, rows in zip(linear.names(shard), linear.rows, strict=True):
                shapes[f"{source}.weight"] = rows // linear.cut, linear.columns * linear.cut
    for norm in norms(config):
        for source in norm.sources:
            shapes[f"{source}.weight"] = (norm.size,)
    return shapes


def standard_deviation(name: str, shape: tuple[int, ...], layers: int) -> float:
    """Return the spread of a weight: outputs of unit size, residuals that add up to about unit size."""
    if len(shape) == 1:
        return 0.1
    adds_to_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    return 1 / math.sqrt(shape[1] * (2 * layers if adds_to_residual else 1))


def draw(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], layers: int
) -> Iterator[NDArray[ml_dtypes.bfloat16]]:
    """Yield a weight's values in pieces, normally distributed; gains of norms lie around one."""
    mean = 1.0 if len(shape) == 1 else 0.0
    deviation = standard_deviation(name, shape, layers)
    left = math.prod(shape)
    while left:
        count = min(left, VALUES_AT_ONCE)
        values = rng.standard_normal(count, dtype=np.float32)
        values *= np.float32(deviation)
        values += np.float32(mean)
        yield values.astype(ml_dtypes.bfloat16)
        left -= count


def write_safetensors(stream: BinaryIO, config: ModelConfig, seed: int) -> None:
    """Write all weights as one safetensors file: header length, JSON header, data."""
    shapes = tensor_shapes(config)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape) * BYTES_PER_VALUE
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    rng = np.random.default_rng(seed)
    written = 0
    for name, shape in shapes.items():
        for values in draw(rng, name, shape, config.num_hidden_layers):
            stream.write(values.view(np.uint8).data)
            written += values.nbytes
        sys.stderr.write(f"\r{written / 2**20:.0f} of {begin / 2**20:.0f} MiB")
    sys.stderr.write("\n")


def write_checkpoint(shape: str, out: Path, seed: int = 0, tokenizer: Path = TOKENIZER) -> None:
    """Write configuration, tokenizer and weights into a new folder."""
    raw = config_of(shape)
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps({**raw, "torch_dtype": "bfloat16"}, indent=2) + "\n")
    special = {key: raw[key] for key in ("bos_token_id", "eos_token_id")}
    (out / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")
    if tokenizer.is_file():
        shutil.copyfile(tokenizer, out / "tokenizer.model")
        settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (out / "tokenizer_config.json").write_text(json.dumps({**settings, **names}, indent=2) + "\n")
    with (out / "model.safetensors").open("wb") as stream:
        write_safetensors(stream, read_config(out / "config.json"), seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint of random bfloat16 weights.")
    parser.add_argument("shape", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="SentencePiece model to copy along")
    arguments = parser.parse_args()
    try:
        write_checkpoint(arguments.shape, arguments.out, arguments.seed, arguments.tokenizer)
    except (SettingError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
