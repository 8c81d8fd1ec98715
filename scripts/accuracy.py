#!/usr/bin/env python
"""Compare the quality of quantized weights: tinychat's, and llama.cpp's, on the same engine.

    .venv/bin/python scripts/accuracy.py CHECKPOINT TEXT [TEXT ...] [--llama-python PATH] [--gguf FILE ...] [--ask]

Each kind of weights is compared with the checkpoint in float32, on every text: KL divergence and how often the most
likely token is the same. An interpreter that has llama-cpp-python quantizes the checkpoint (a plain Llama) to Q4_0,
IQ4_XS and Q4_K_M; where a matrix has rows that its blocks of 32 do not fit, all rows are lengthened with zeros to whole
blocks of 256 first, and the sizes given are those of the weights' share. These files, and others that are named, are
dequantized by the package `gguf` and run in float32, so that their weights alone are judged; tinychat's models run as
they always do, activations in int8. With --ask the checkpoint and the default int4 model answer three questions.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from comparison.processes import clean_environment
from safetensors.numpy import save_file

import tinychat
from tinychat.checkpoint.gguf_families import FAMILIES
from tinychat.checkpoint.gguf_tensors import halves_order, rotated_heads, tensor_names
from tinychat.generate.perplexity import measure
from tinychat.models.architectures import read_config

QUESTIONS = (
    "Why is the sky blue? Answer in two sentences.",
    "Name three things to pack for a day in the mountains.",
    "What does a compiler do?",
)
DEFAULT = "int4 (default)"
KINDS: dict[str, dict[str, str]] = {
    "int8": {"quant": "int8"},
    "int4, plain": {"quant": "int4", "method": "plain"},
    "int4, importance, 4.25 bits": {"quant": "int4", "method": "importance", "bits": "4.25"},
    "int4, gptq, 4.25 bits": {"quant": "int4", "method": "gptq", "bits": "4.25"},
    "int4, gptq, 4.5 bits": {"quant": "int4", "method": "gptq", "bits": "4.5"},
    DEFAULT: {"quant": "int4"},
    "int4, gptq, 5.45 bits": {"quant": "int4", "method": "gptq", "bits": "5.45"},
}


LLAMA_TYPES = ("Q4_0", "IQ4_XS", "Q4_K_M")
# Rows that llama.cpp's types take: whole blocks of 32, or else of 256.
SMALL_BLOCK, BLOCK = 32, 256


def quantized_by_llama(checkpoint: Path, python: str, made: Path) -> list[Path]:
    """Let llama.cpp quantize a checkpoint to each of `LLAMA_TYPES`."""
    config = json.loads((checkpoint / "config.json").read_text())
    widths = [config["hidden_size"], config["intermediate_size"]]
    multiple = BLOCK if any(width % SMALL_BLOCK for width in widths) else 1
    plain = made / "plain.gguf"
    write = [sys.executable, "-P", "-m", "comparison.gguf_file", checkpoint.resolve(), plain]
    subprocess.run([*write, "--row-multiple", str(multiple)], env=clean_environment(), check=True)
    files = []
    for kind in LLAMA_TYPES:
        files.append(made / f"{kind}.gguf")
        quantize = [python, "-P", "-m", "comparison.llama_quantize", plain, files[-1], "--type", kind]
        subprocess.run([*quantize, "--threads", "1", "--mix", "default"], env=clean_environment(), check=True)
    return files


def checkpoint_of_gguf(file: Path, checkpoint: Path, target: Path) -> int:
    """Write a GGUF file's weights, dequantized, as a checkpoint with the text files of the one it was made from.

    Returns
    -------
    int
        Bytes of its weights, those that only lengthen rows left out.
    """
    from gguf import GGUFReader, dequantize

    config = read_config(checkpoint / "config.json")
    names = {theirs: ours for ours, theirs in tensor_names(config, FAMILIES["llama"]).items()}
    tensors, size = {}, 0.0
    for tensor in GGUFReader(file).tensors:
        if tensor.name not in names:
            continue
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            columns = config.intermediate_size if "ffn_down" in tensor.name else config.hidden_size
            size += tensor.n_bytes * columns / values.shape[1]
            values = values[:, :columns]
        if heads := rotated_heads(tensor.name, config):
            values = values[halves_order(len(values), heads)]
        tensors[names[tensor.name]] = np.ascontiguousarray(values)
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*"))
    save_file(tensors, target / "model.safetensors")
    return round(size)


def print_row(name: str, size: int, folder: Path, reference: tinychat.Model, texts: list[Path]) -> None:
    """Measure one model on every text and print its line of the table."""
    model = tinychat.load(folder, context=reference.context_size)
    cells = []
    for text in texts:
        against = measure(model, text.read_text(encoding="utf-8"), against=reference).against
        assert against is not None
        cells.append(f"{against.kl_divergence:.4f} | {against.top1_agreement:.1%}")
    print(f"| {name} | {size / 1e6:.3g} MB | {' | '.join(cells)} |", flush=True)


def print_answers(models: dict[str, tinychat.Model]) -> None:
    """Print what each model answers to the questions, at temperature 0."""
    for question in QUESTIONS:
        print(f"\n**{question}**")
        for name, model in models.items():
            print(
                f"- {name}: {tinychat.Chat(model, max_tokens=120, temperature=0.0).say(question).strip()}", flush=True
            )


def main() -> None:
    """Convert, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--llama-python", metavar="PATH", help="interpreter with llama_cpp")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--ask", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        reference = tinychat.load(
            tinychat.convert(arguments.checkpoint, made / "f32", quant="f32"), context=arguments.context
        )
        print("| weights | file |" + "".join(f" KL, {text.name} | same top token |" for text in arguments.texts))
        print("|---|---:|" + "---:|---:|" * len(arguments.texts))
        folders = {}
        for number, kind in enumerate(arguments.kinds):
            folder = made / f"kind{number}"
            folders[kind] = tinychat.convert(arguments.checkpoint, folder, check=False, **KINDS[kind])
            size = (folder / "model.safetensors").stat().st_size
            print_row(kind, size, folder, reference, arguments.texts)
        files = arguments.gguf
        if arguments.llama_python:
            files = [*quantized_by_llama(arguments.checkpoint, arguments.llama_python, made), *files]
        for file in files:
            plain = made / f"{file.stem}-checkpoint"
            size = checkpoint_of_gguf(file, arguments.checkpoint, plain)
            model = tinychat.convert(plain, made / file.stem, quant="f32")
            print_row(f"llama.cpp {file.stem}", size, model, reference, arguments.texts)
        if arguments.ask:
            default = folders.get(DEFAULT) or tinychat.convert(arguments.checkpoint, made / "default", check=False)
            print_answers({"f32": reference, "int4": tinychat.load(default, context=arguments.context)})


if __name__ == "__main__":
    main()
