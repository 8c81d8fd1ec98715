"""Engines of small checkpoints for tests; run as a script, it saves their logits for another process to compare."""

import sys
from pathlib import Path

import families
import gguf_files
import numpy as np

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.conversion.convert import convert, write_model_folder
from tinychat.conversion.keep import kept_quantization
from tinychat.engine.engine import Engine
from tinychat.generate.sequence import logits_of_all
from tinychat.models.folder import open_model_folder
from tinychat.models.layout import Quantization

STORIES = Path(__file__).parents[2] / "shared" / "data" / "stories260K"
METHODS = ("int4", "int8", "f32")
# Every type of cache where every quantization runs once: with each other they would compile four times as much.
KV_OF = {"int4": "f16", "int8": "int8", "f32": "f32", "mixed": "bf16", "kept": "bf16"}
# Every kind of weight in one model.
MIXED = Quantization("int4", 32, ("o_proj", "lm_head"), 48)
# Past the border of attention's chunks at 512, and the borders of blocks at 64.
LENGTH = 600
CONTEXT_SIZE = 640


def convert_variant(name, method, folder, group_size=32):
    """Convert a variant of `families`, or "stories260K"; return the model folder."""
    checkpoint = STORIES
    if name != "stories260K":
        checkpoint = families.write_checkpoint(families.BY_NAME[name], folder.with_name(f"{folder.name}-checkpoint"))
    if method == "kept":
        with unpacked(kept_file(name, folder.with_name(f"{folder.name}.gguf"))) as source:
            return write_model_folder(source, folder, kept_quantization(open_checkpoint(source)))
    if method == "mixed":
        return write_model_folder(checkpoint, folder, MIXED)
    return convert(checkpoint, folder, method, group_size)


def kept_file(name, path):
    """Write a variant as a GGUF file of many types."""
    return gguf_files.write_variant(families.BY_NAME[name], path, gguf_files.mixture)


def open_engine(folder, threads=1, kv=None):
    opened = open_model_folder(folder)
    return Engine(opened, threads, kv or ("f32" if opened.quantization.method == "f32" else "bf16"))


def open_sequence(folder, context_size=CONTEXT_SIZE, threads=1, kv=None):
    return open_engine(folder, threads, kv).sequence(context_size)


def fresh_logits(folder, kv=None):
    """Return the logits of one thread from an empty cache."""
    sequence = open_sequence(folder, kv=kv)
    return logits_of_all(sequence, draw_ids(sequence))


def draw_ids(sequence, length=LENGTH):
    return np.random.default_rng(5).integers(0, sequence.vocab_size, length).tolist()


def main(target, *folders):
    """Save the logits of each model folder to an .npz file by its name, with the type of cache of its quantization."""
    logits = {}
    for folder in map(Path, folders):
        logits[folder.name] = fresh_logits(folder, KV_OF[folder.name.rpartition("-")[2]])
    np.savez(target, **logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
