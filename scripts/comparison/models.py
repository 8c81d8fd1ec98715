"""The checkpoint in each engine's own format, and what it took to make."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from comparison.processes import Finished, run_measured


@dataclass(frozen=True)
class Pythons:
    """Interpreters: of tinychat, and those that have llama_cpp and openvino."""

    tinychat: str
    llama: str
    openvino: str


@dataclass(frozen=True)
class Conversion:
    """How to make one engine's model."""

    out: Path
    commands: list[list[str]]
    leftovers: tuple[Path, ...] = ()

    @property
    def size_mib(self) -> float:
        """Size of the model's weights."""
        files = [self.out] if self.out.is_file() else [path for path in self.out.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files) / 2**20

    def run(self) -> Finished:
        """Make the model anew; seconds of all steps, the largest peak of them."""
        for path in (self.out, *self.leftovers):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        os.sync()
        steps = [run_measured(command) for command in self.commands]
        for path in self.leftovers:
            path.unlink(missing_ok=True)
        return Finished("", 0.0, sum(step.seconds for step in steps), max(step.peak_mib for step in steps))


def tinychat_conversion(checkpoint: Path, work: Path, pythons: Pythons) -> Conversion:
    """Return how tinychat makes an int4 model folder, each weight by itself, as Q4_0 does."""
    out = work / "tinychat-int4"
    command = [pythons.tinychat, "-P", "-m", "tinychat", "convert", str(checkpoint), str(out)]
    return Conversion(out, [[*command, "--method", "plain", "--no-check"]])


def native_conversion(file: Path, pythons: Pythons) -> Conversion:
    """Return how tinychat makes a model folder of the codes of a GGUF file."""
    out = file.with_name(f"tinychat-{file.stem}")
    command = [pythons.tinychat, "-P", "-m", "tinychat", "convert", str(file), str(out)]
    return Conversion(out, [[*command, "--quant", "native", "--no-check"]])


def llama_conversion(
    checkpoint: Path, work: Path, pythons: Pythons, threads: int, mix: str, kind: str = "Q4_0"
) -> Conversion:
    """Return how llama.cpp's users make a file of a type: an unquantized GGUF, then its own quantizer."""
    between, out = work / "unquantized.gguf", work / f"{kind.lower()}-{mix}.gguf"
    write = [pythons.tinychat, "-P", "-m", "comparison.gguf_file", str(checkpoint), str(between)]
    quantize = [pythons.llama, "-P", "-m", "comparison.llama_quantize", str(between), str(out)]
    return Conversion(out, [write, [*quantize, "--threads", str(threads), "--mix", mix, "--type", kind]], (between,))


def openvino_conversion(checkpoint: Path, work: Path, pythons: Pythons) -> Conversion:
    """Return how optimum makes an int4 model for OpenVINO, in groups of 64: its fastest on processors."""
    out = work / "openvino-int4"
    tool = Path(pythons.openvino).with_name("optimum-cli")
    flags = ["--task", "text-generation-with-past", "--weight-format", "int4", "--sym", "--group-size", "64"]
    more = ["--ratio", "1.0", "--disable-convert-tokenizer"]
    return Conversion(out, [[str(tool), "export", "openvino", "--model", str(checkpoint), *flags, *more, str(out)]])


def convert_in_turns(conversions: dict[str, Conversion], runs: int) -> dict[str, list[Finished]]:
    """Make every model `runs` times, in turns; those that are there already are kept, and not measured."""
    missing = {name: conversion for name, conversion in conversions.items() if not conversion.out.exists()}
    finished: dict[str, list[Finished]] = {name: [] for name in missing}
    for run in range(runs):
        for name, conversion in missing.items():
            sys.stderr.write(f"converting for {name}, {run + 1} of {runs}\n")
            finished[name].append(conversion.run())
    os.sync()
    return finished


def int4_for_both(checkpoint: Path, work: Path, llama_python: str, threads: int) -> tuple[Path, Path]:
    """Convert a checkpoint to four bits for tinychat and llama.cpp where that has not been done.

    Returns
    -------
    ours, theirs : Path
        A model folder, and a GGUF file of Q4_0 alone.
    """
    pythons, checkpoint = Pythons(sys.executable, llama_python, sys.executable), checkpoint.resolve()
    ours = tinychat_conversion(checkpoint, work, pythons)
    theirs = llama_conversion(checkpoint, work, pythons, threads, "pure")
    convert_in_turns({"tinychat": ours, "llama.cpp": theirs}, 1)
    return ours.out, theirs.out
