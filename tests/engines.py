"""Engines of small checkpoints for tests."""

from pathlib import Path

import families
import gguf_files
import numpy as np

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.conversion.convert import convert, write_model_folder
from tinychat.conversion.passthrough import passthrough_quantization
from tinychat.engine.blocks import bytes_per_position
from tinychat.engine.engine import Engine
from tinychat.engine.sequence import new_sequence
from tinychat.generate.sequence import logits_of_all
from tinychat.models.architectures import read_config
from tinychat.models.folder import open_model_folder
from tinychat.models.layout import Quantization

STORIES = Path(__file__).parents[2] / "shared" / "data" / "stories260K"
METHODS = ("int4", "int8", "f32")
# The type of cache that an engine has where a test does not say. Each quantization has one of its own, since no
# operation reads both weights and cache: with each other they would compile four times as much. Int4 with int8 and int8
# with float16 are what the soak and small models compile anyway.
KV_OF = {"int4": "int8", "int8": "f16", "f32": "bf16", "mixed": "f32", "native": "f16"}
METHOD_OF = {"int8": "int4", "f16": "int8", "bf16": "f32", "f32": "mixed"}
# Every kind of weight in one model; each linear layer is in int4 in one of the two, and in int8 in the other.
MIXED = Quantization("int4", 32, ("o_proj", "lm_head"), 48)
MIXED_TIED = Quantization("int4", 32, ("qkv_proj", "gate_up_proj", "down_proj"), 48)
# Past the border of attention's chunks at 512, and the borders of blocks at 64.
LENGTH = 600
CONTEXT_SIZE = 640


def convert_variant(name, method, folder, group_size=32):
    """Convert a variant of `families`, or "stories260K"; return the model folder."""
    checkpoint = STORIES
    if name != "stories260K":
        checkpoint = families.write_checkpoint(families.BY_NAME[name], folder.with_name(f"{folder.name}-checkpoint"))
    if method == "native":
        with unpacked(native_file(name, folder.with_name(f"{folder.name}.gguf"))) as source:
            return write_model_folder(source, folder, passthrough_quantization(open_checkpoint(source)))
    if method == "mixed":
        tied = read_config(checkpoint / "config.json").tie_word_embeddings
        return write_model_folder(checkpoint, folder, MIXED_TIED if tied else MIXED)
    return convert(checkpoint, folder, method, group_size)


def native_file(name, path):
    """Write a variant as a GGUF file of many types."""
    return gguf_files.write_variant(families.BY_NAME[name], path, gguf_files.mixture)


def open_engine(folder, threads=1, kv=None, positions=None):
    """Return an engine; `positions` is how many its cache has room for, of all sequences, where a test wants few."""
    opened = open_model_folder(folder)
    stored = opened.quantization
    kv = kv or KV_OF["mixed" if stored.int8 or stored.frequent else stored.dtype]
    memory = None if positions is None else positions * bytes_per_position(opened.config, kv)
    return Engine(opened, threads, kv, cache_memory=memory)


def open_sequence(folder, context_size=CONTEXT_SIZE, threads=1, kv=None):
    return new_sequence(open_engine(folder, threads, kv), context_size)


def fresh_logits(folder):
    """Return the logits of one thread from an empty cache."""
    sequence = open_sequence(folder)
    return logits_of_all(sequence, draw_ids(sequence))


def draw_ids(sequence, length=LENGTH):
    return np.random.default_rng(5).integers(0, sequence.vocab_size, length).tolist()
