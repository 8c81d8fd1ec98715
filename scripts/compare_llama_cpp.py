"""Compare tinychat with llama.cpp, and OpenVINO, on the same checkpoint in one run.

    .venv/bin/python scripts/compare_llama_cpp.py CHECKPOINT --threads 2 --llama-python PATH

The checkpoint is converted to int4 for tinychat and to Q4_0 for llama.cpp (``gguf``, then llama.cpp's own quantizer).
With ``--type`` both run the codes of one file.
Each engine runs in a process of its own, with a clean environment, and only one works at a time; every figure is taken
once per run, in turns. llama.cpp runs with flash attention on and off, and in each line the faster of the two counts.

stdout has a markdown table of medians and, as its last line, one JSON object with every value; stderr tells what is
going on. ``scripts/make_random_checkpoint.py`` writes a checkpoint of random weights in a real shape.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from comparison import measuring, models
from comparison.llama_quantize import FILE_TYPES
from comparison.processes import EngineError, EngineProcess, Finished, running, versions_of, work_folder
from comparison.report import OURS, Row, as_json, processor, table
from comparison.serving import ONCE_CONTEXT

LLAMA = "llama.cpp"
OPENVINO = "OpenVINO"
LLAMA_VARIANTS = {f"{LLAMA} flash attention": "on", f"{LLAMA} no flash attention": "off"}
CONVERSIONS = 3
# Two int4 quantizations of random weights agree at about 0.88, those of trained weights better.
LEAST_AGREEMENT = 0.7


@dataclass(frozen=True)
class Results:
    """What was found: the table, and what it was found with."""

    rows: list[Row]
    versions: list[str]
    agreement: dict[str, float]


class Comparison:
    """The engines of one comparison: how their models are made, and how they are started."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments = arguments
        self.pythons = models.Pythons(sys.executable, arguments.llama_python, arguments.openvino_python)
        checkpoint = arguments.checkpoint.resolve()
        theirs = models.llama_conversion(
            checkpoint, work, self.pythons, arguments.threads, arguments.mix, arguments.file_type
        )
        ours = models.tinychat_conversion(checkpoint, work, self.pythons)
        if arguments.type:
            ours = models.native_conversion(theirs.out, self.pythons)
        # Ours may be made of theirs.
        self.conversions = {LLAMA: theirs, OURS: ours}
        self.columns = {OURS: [OURS], LLAMA: [LLAMA, *LLAMA_VARIANTS]}
        if arguments.openvino:
            self.conversions[OPENVINO] = models.openvino_conversion(checkpoint, work, self.pythons)
            self.columns[OPENVINO] = [OPENVINO]

    def measure(self) -> Results:
        """Convert, measure rates, then starts."""
        converted = models.convert_in_turns(self.conversions, CONVERSIONS)
        with running(self.engine_commands()) as engines:
            agreement = checked_agreement(engines)
            rates = measuring.planned_rates(self.arguments.prompts, self.arguments.depths)
            found = measuring.measure_rates(engines, rates, self.arguments.runs)
            versions = versions_of(engines)
        rows = [Row(rate.label, values) for rate, values in found.items()]
        rows += process_rows(measuring.measure_starts(self.start_commands(), self.arguments.runs), "start")
        rows += process_rows(converted, "conversion")
        rows.append(Row("model on disk, MiB", {name: [made.size_mib] for name, made in self.conversions.items()}))
        return Results(rows, versions, agreement)

    def engine_commands(self) -> dict[str, list[str]]:
        """Return what starts each engine that stays."""
        commands = {OURS: self._engine(OURS, self.pythons.tinychat, "tinychat")}
        for name, flash_attention in LLAMA_VARIANTS.items():
            commands[name] = [*self._engine(LLAMA, self.pythons.llama, "llama"), "--flash-attention", flash_attention]
        if OPENVINO in self.conversions:
            commands[OPENVINO] = self._engine(OPENVINO, self.pythons.openvino, "openvino")
        return commands

    def start_commands(self) -> dict[str, list[str]]:
        """Return what goes from nothing to one token: tinychat's own command, of the others the least that does."""
        ours = [self.pythons.tinychat, "-P", "-m", "tinychat", "complete", str(self.conversions[OURS].out)]
        ours += ["-p", measuring.PROMPT, "--raw", "--json", "--max-tokens", "1", "--temperature", "0"]
        ours += ["--threads", str(self.arguments.threads), "--context", str(ONCE_CONTEXT)]
        once = ["--once", str(measuring.prompt_tokens(ours))]
        commands = {OURS: ours, LLAMA: [*self._engine(LLAMA, self.pythons.llama, "llama"), *once]}
        if OPENVINO in self.conversions:
            commands[OPENVINO] = [*self._engine(OPENVINO, self.pythons.openvino, "openvino"), *once]
        return commands

    def _engine(self, name: str, python: str, module: str) -> list[str]:
        flags = ["--threads", str(self.arguments.threads)]
        return [python, "-P", "-m", f"comparison.{module}_engine", str(self.conversions[name].out), *flags]


def checked_agreement(engines: dict[str, EngineProcess]) -> dict[str, float]:
    """Return how far the engines' logits agree with ours.

    Raises
    ------
    EngineError
        If one runs another model.
    """
    found = measuring.agreement(engines)
    for name, value in found.items():
        sys.stderr.write(f"{name}: correlation of logits with {OURS}: {value:.4f}\n")
        if value < LEAST_AGREEMENT:
            raise EngineError(f"{name} computes another model: its logits correlate with ours by {value:.2f}")
    return found


def process_rows(finished: dict[str, list[Finished]], what: str) -> list[Row]:
    """Return the rows of seconds and peak memory of whole processes; none if there were no processes."""
    if not finished:
        return []
    label = "start to first token, s" if what == "start" else f"{what}, s"
    seconds = {
        name: [one.first_line_seconds if what == "start" else one.seconds for one in runs]
        for name, runs in finished.items()
    }
    peaks = {name: [one.peak_mib for one in runs] for name, runs in finished.items()}
    return [Row(label, seconds), Row(f"peak memory of the {what}, MiB", peaks)]


def conditions(arguments: argparse.Namespace, versions: list[str]) -> str:
    """Return the line above the table: machine, versions, command."""
    machine = f"{arguments.threads} threads of {processor()}, {platform.system()}"
    command = ["scripts/compare_llama_cpp.py", arguments.checkpoint.name, *flags_worth_showing(arguments)]
    made = f"{arguments.mix} {arguments.file_type}"
    how = f"{made}; medians of {arguments.runs} runs in turns: `{shlex.join(command)}`"
    return "; ".join([machine, *versions, how])


def flags_worth_showing(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that change figures; paths of interpreters do not."""
    flags = ["--threads", str(arguments.threads), "--runs", str(arguments.runs), "--mix", arguments.mix]
    flags += ["--type", arguments.type] if arguments.type else []
    return [*flags, "--openvino"] if arguments.openvino else flags


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare tinychat with llama.cpp on the same checkpoint.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="Hugging Face checkpoint folder")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048], metavar="TOKENS")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 2048, 4096], metavar="TOKENS")
    parser.add_argument(
        "--mix",
        choices=["pure", "default"],
        default="pure",
        help="one type for all weights, or llama-quantize's choice",
    )
    parser.add_argument(
        "--type", choices=[*FILE_TYPES], help="both run the codes of a GGUF file of this type, which llama.cpp makes"
    )
    parser.add_argument("--openvino", action="store_true", help="compare with OpenVINO as well")
    parser.add_argument("--llama-python", metavar="PATH", default=sys.executable, help="interpreter with llama_cpp")
    parser.add_argument(
        "--openvino-python", metavar="PATH", default=sys.executable, help="interpreter with openvino and optimum-intel"
    )
    parser.add_argument(
        "--work", metavar="FOLDER", type=Path, help="keep the converted models here, and use those that are here"
    )
    arguments = parser.parse_args()
    # Of llama.cpp's file, where ours is made of the checkpoint.
    arguments.file_type = arguments.type or "Q4_0"
    return arguments


def main() -> None:
    arguments = parse_arguments()
    try:
        with work_folder(arguments.work) as work:
            comparison = Comparison(arguments, work)
            results = comparison.measure()
    except (EngineError, OSError) as error:
        sys.exit(f"error: {error}")
    columns = comparison.columns
    sys.stdout.write(f"{conditions(arguments, results.versions)}\n\n{table(results.rows, columns)}\n")
    details = {"processor": processor(), "versions": results.versions, "agreement": results.agreement}
    sys.stdout.write(json.dumps({**details, "rows": as_json(results.rows, columns)}) + "\n")


if __name__ == "__main__":
    main()
