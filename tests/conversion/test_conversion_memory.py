"""A conversion needs memory for a layer's largest linear, not for the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

HIDDEN, INNER, LAYERS, VOCABULARY = 1024, 4096, 8, 16000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
# Python, numpy and Numba with its compiler come first; then the largest linear [2 * 4096, 1024]: a slab of it as it
# was and what it becomes. Pages of the mapped checkpoint belong to the system and do not count.
ALLOWED = 40e6

CONVERT = """
import sys, threading
from pathlib import Path
from tinychat.conversion.convert import convert

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

warmup, checkpoint, target, quant = sys.argv[1:]
convert(warmup, target + "-warmup", quant)
before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
convert(checkpoint, target, quant)
done.set()
watcher.join()
print(peak - before)
"""


def write(folder, layers, vocabulary):
    """Write a checkpoint in bfloat16 whose weights repeat one random block."""
    folder.mkdir()
    block = np.random.default_rng(0).standard_normal(HIDDEN * INNER) / 32
    block = block.astype(np.float32).astype(ml_dtypes.bfloat16)
    square, wide, tall = (block[: n * k].reshape(n, k) for n, k in [(HIDDEN, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)])
    tensors = {
        "model.embed_tokens.weight": np.resize(block, (vocabulary, HIDDEN)),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}."
        tensors |= {f"{name}self_attn.{p}_proj.weight": square for p in "qkvo"}
        tensors |= {f"{name}mlp.{p}_proj.weight": w for p, w in [("gate", wide), ("up", wide), ("down", tall)]}
        tensors |= {f"{name}{p}_layernorm.weight": np.ones(HIDDEN, np.float32) for p in ("input", "post_attention")}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers, "vocab_size": vocabulary}))
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the process's memory from /proc")
@pytest.mark.parametrize("quant", ["int4", "int8"])
def test_peak_memory_does_not_grow_with_the_model(quant, tmp_path):
    small, large = write(tmp_path / "small", 1, 64), write(tmp_path / "large", LAYERS, VOCABULARY)
    size = (large / "model.safetensors").stat().st_size
    assert size > 280e6
    command = [sys.executable, "-c", CONVERT, small, large, tmp_path / "model", quant]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < ALLOWED, f"{int(result.stdout) / 1e6:.0f} MB for a checkpoint of {size / 1e6:.0f} MB"
