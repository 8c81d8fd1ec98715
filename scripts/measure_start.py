"""Measure the time from the command to the first byte of a reply, in turns with llama.cpp on the same weights.

    .venv/bin/python scripts/measure_start.py --llama-python PATH

tinychat runs ``complete smollm2-135m -p Hi`` with warm files; llama.cpp loads the GGUF file that this model was made
of, and runs as many tokens. Each starts in a process of its own, with a clean environment. Then the parts of our start
are taken one after another in one process. All figures are medians.

stdout has two markdown tables and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from comparison import measuring
from comparison.processes import EngineError, Finished, clean_environment
from comparison.report import processor

from tinychat.errors import HubError
from tinychat.store.default_model import DEFAULT_MODEL, default_package

PROMPT = [{"role": "user", "content": "Hi"}]
# All that `complete` does before its first byte, in its order.
PARTS = {
    "Python itself": "",
    "command line: click, settings, configuration": "import tinychat.cli, tinychat.commands.complete",
    "store of models": "from tinychat.api import locate; folder = locate(model)",
    "NumPy": "import numpy",
    "replies: request, sampling, driver": "import tinychat.generate.loading, tinychat.text.stop",
    "llvmlite": "import llvmlite.binding",
    "engine": (
        "import tinychat.kernels, tinychat.engine.engine; from tinychat.engine.loading import load_engine;"
        " from tinychat.engine.sequence import new_sequence"
    ),
    "weights and machine code": "sequence = new_sequence(load_engine(folder))",
    "tokenizers library": "import tokenizers, tinychat.text.huggingface_tokenizer, tinychat.text.loading as loading",
    "tokenizer's file": "tokenizer = loading.load_tokenizer(folder)",
    "chat template, in its helper": "ids = load_template(folder, tokenizer).render_ids(prompt)",
    "prompt's tokens": "sequence.step(ids)",
}
PROFILE = """
import json, sys, time
model, prompt, parts = json.loads(sys.argv[1])
seconds, start = {}, time.clock_gettime(time.CLOCK_MONOTONIC)
seconds["Python itself"] = start - float(sys.argv[2])
names = {"model": model, "prompt": prompt}
for name, code in parts.items():
    if name == "weights and machine code":
        # As `load_folder` does: the helper gets ready meanwhile.
        exec("from tinychat.text.template import load_template, start_renderer; start_renderer()", names)
    if code:
        exec(code, names)
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        seconds[name], start = now - start, now
print(json.dumps(seconds))
"""
# Becomes the interpreter that is measured: what passes until the first line of its program is Python's own start.
LAUNCH = """
import os, sys, time
python, program, given = sys.argv[1:]
os.execv(python, [python, "-P", "-c", program, given, str(time.clock_gettime(time.CLOCK_MONOTONIC))])
"""


def start_commands(arguments: argparse.Namespace, gguf: Path) -> dict[str, list[str]]:
    """Return commands that write one token: tinychat's own, and of llama.cpp the least that does."""
    ours = [sys.executable, "-P", "-m", "tinychat", "complete", DEFAULT_MODEL, "-p", "Hi", "--quiet"]
    ours += ["--max-tokens", "1", "--temperature", "0", "--threads", str(arguments.threads)]
    if arguments.llama_python is None:
        return {"tinychat": ours}
    tokens = str(measuring.prompt_tokens([*ours, "--json"]))
    theirs = [arguments.llama_python, "-P", "-m", "comparison.llama_engine", str(gguf)]
    return {"tinychat": ours, "llama.cpp": [*theirs, "--threads", str(arguments.threads), "--once", tokens]}


def profile(model: str, runs: int) -> dict[str, float]:
    """Return the median seconds of each part of a start."""
    command = [sys.executable, "-P", "-c", LAUNCH, sys.executable, PROFILE, json.dumps([model, PROMPT, PARTS])]
    found = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=clean_environment(), check=True).stdout)
        for _ in range(runs)
    ]
    return {name: median(run[name] for run in found) for name in PARTS}


def tables(found: dict[str, list[Finished]], parts: dict[str, float]) -> str:
    """Return the tables of starts, and of the parts of ours."""
    lines = ["| | first byte, s (median) | least | peak memory, MiB |", "|---|---|---|---|"]
    for name, runs in found.items():
        seconds = [run.first_line_seconds for run in runs]
        peak = median(run.peak_mib for run in runs)
        lines.append(f"| {name} | {median(seconds):.3f} | {min(seconds):.3f} | {peak:.0f} |")
    lines += ["", "| part of a start | ms |", "|---|---|"]
    lines += [f"| {name} | {1000 * seconds:.0f} |" for name, seconds in parts.items()]
    return "\n".join([*lines, f"| all | {1000 * sum(parts.values()):.0f} |"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the time from the command to the first byte of a reply.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama-python", metavar="PATH", help="interpreter with llama_cpp; else tinychat alone")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        # Of llama.cpp's model, whose codes ours has exactly.
        gguf = Path()
        try:
            if arguments.llama_python is not None:
                gguf = stack.enter_context(default_package(HubError(f"{DEFAULT_MODEL} is not here")))
            found = measuring.measure_starts(start_commands(arguments, gguf), arguments.runs)
            parts = profile(DEFAULT_MODEL, arguments.runs)
        except (EngineError, HubError, OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"error: {error}")
    print(f"{arguments.threads} threads of {processor()}; medians of {arguments.runs} runs in turns\n")
    print(tables(found, parts))
    starts = {name: [run.first_line_seconds for run in runs] for name, runs in found.items()}
    print(json.dumps({"processor": processor(), "starts": starts, "parts": parts}))


if __name__ == "__main__":
    main()
