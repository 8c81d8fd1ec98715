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

pytestmark = pytest.mark.slow

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
# A calibrated conversion of one layer: the second moments of the inputs of down_proj and their factors, float32 [3072,
# 3072] each, half of one more, and the linear itself, as it is to be coded and with the errors so far.
CALIBRATED = {"hidden_size": 512, "intermediate_size": 3072, "num_hidden_layers": 1, "vocab_size": 64}
ALLOWED_CALIBRATED = 4 * (2.5 * 3072**2 + 2 * 512 * 3072) + ALLOWED

reads_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the process's memory from /proc")

CONVERT = """
import sys, threading
from pathlib import Path
from tinychat.conversion.convert import write_model_folder
from tinychat.models.layout import Quantization

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def convert(checkpoint, target):
    texts = [[*range(64)]] if method == "gptq" else ()
    write_model_folder(checkpoint, target, Quantization(quant), algorithm=method, texts=texts)

warmup, checkpoint, target, quant, method = sys.argv[1:]
convert(warmup, target + "-warmup")
before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
convert(checkpoint, target)
done.set()
watcher.join()
print(peak - before)
"""


def write(folder, **sizes):
    """Write a checkpoint in bfloat16 whose weights repeat one random block."""
    folder.mkdir()
    config = CONFIG | sizes
    D, F = config["hidden_size"], config["intermediate_size"]
    block = np.random.default_rng(0).standard_normal(D * F) / 32
    block = block.astype(np.float32).astype(ml_dtypes.bfloat16)
    square, wide, tall = (block[: n * k].reshape(n, k) for n, k in [(D, D), (F, D), (D, F)])
    tensors = {
        "model.embed_tokens.weight": np.resize(block, (config["vocab_size"], D)),
        "model.norm.weight": np.ones(D, np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        tensors |= {f"{name}self_attn.{p}_proj.weight": square for p in "qkvo"}
        tensors |= {f"{name}mlp.{p}_proj.weight": w for p, w in [("gate", wide), ("up", wide), ("down", tall)]}
        tensors |= {f"{name}{p}_layernorm.weight": np.ones(D, np.float32) for p in ("input", "post_attention")}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def peak_of(*arguments):
    """Return the bytes that a conversion needs beside those of the one before it."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CONVERT, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@reads_proc
@pytest.mark.parametrize("quant", ["int4", "int8"])
def test_peak_memory_does_not_grow_with_the_model(quant, tmp_path):
    small = write(tmp_path / "small", num_hidden_layers=1, vocab_size=64)
    large = write(tmp_path / "large")
    size = (large / "model.safetensors").stat().st_size
    assert size > 280e6
    peak = peak_of(small, large, tmp_path / "model", quant, "plain")
    assert peak < ALLOWED, f"{peak / 1e6:.0f} MB for a checkpoint of {size / 1e6:.0f} MB"


@reads_proc
def test_a_calibrated_conversion_holds_what_is_as_large_as_a_layer_few_times(tmp_path):
    small = write(tmp_path / "small", **CALIBRATED | {"hidden_size": 64, "intermediate_size": 96})
    large = write(tmp_path / "large", **CALIBRATED)
    peak = peak_of(small, large, tmp_path / "model", "int4", "gptq")
    assert peak < ALLOWED_CALIBRATED, f"{peak / 1e6:.0f} MB, {ALLOWED_CALIBRATED / 1e6:.0f} MB are allowed"
