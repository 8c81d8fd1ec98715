"""Draw the diagrams of docs/architecture.md: the rooms of the package, the way of a weight, the way of a token.

    .venv/bin/python scripts/draw_architecture.py     # writes docs/rooms.svg, docs/weight.svg, docs/token.svg

The rooms and their arrows are computed from the imports of the code. The same code always gives the same files, and a
test compares them: draw again when a room, an import between rooms or a file that a diagram names has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from diagrams.canvas import LINE_HEIGHT, Canvas, Point  # noqa: E402
from diagrams.layered import Graph, layout, reduced  # noqa: E402
from import_graph import PACKAGE, room_graph  # noqa: E402

DOCS = REPO / "docs"
# What a room is, in the words of the page.
ROOMS = {
    "api": "what programs call",
    "bench": "rates and limits",
    "chat": "the terminal's side",
    "checkpoint": "formats of others",
    "cli": "the command line",
    "commands": "one command per file",
    "configuration": "config.toml",
    "conversation": "messages and history",
    "conversion": "makes model folders",
    "engine": "runs a model",
    "errors": "what is raised",
    "file_lock": "one writer at a time",
    "files": "reads files of others",
    "generate": "writes replies",
    "held_signals": "signals that wait",
    "json_file": "reads JSON of others",
    "kernels": "compiled operations",
    "limited_process": "helpers with limits",
    "machine": "cores and memory",
    "models": "what a model is",
    "setting_kinds": "types of settings",
    "settings": "the table of settings",
    "store": "where models are",
    "terminal": "drawing and keys",
    "text": "tokenizers, templates",
    "user_folders": "folders of one user",
}
BOX, GAP, FLOOR, WAY = (168, 46), 22, 92, 20
GROUND_COLUMNS = 4
MARGIN = 12


def is_ground(graph: Graph) -> set[str]:
    """Return the modules that all rooms stand on: files that import no folder of the package, nor what does."""
    ground: set[str] = set()
    while more := {
        room for room in graph if room not in ground and not (PACKAGE / room).is_dir() and graph[room] <= ground
    }:
        ground |= more
    return ground


def rooms() -> str:
    """Draw which room imports which."""
    graph = room_graph()
    ground = is_ground(graph)
    upper = reduced({room: others - ground for room, others in graph.items() if room not in ground})
    canvas = Canvas("The rooms of tinychat: an arrow leads from a room to one that it imports")
    width, height = BOX
    found = layout(upper, width + GAP, WAY)
    top = {node: MARGIN + FLOOR * i for i, floor in enumerate(found.floors) for node in floor}
    for path in found.paths:
        points: list[Point] = []
        for node in path:
            y = top[node]
            points += [(MARGIN + found.x[node], y + height)] if isinstance(node, str) else []
            points += [(MARGIN + found.x[node], y), (MARGIN + found.x[node], y + height)] if node not in upper else []
        points[-1] = (points[-1][0], top[path[-1]] - 2)
        canvas.curve(points)
    for node in sorted(upper):
        room_box(canvas, MARGIN + found.x[node] - width / 2, top[node], node, "code")
    draw_ground(canvas, sorted(ground), MARGIN + FLOOR * len(found.floors))
    return canvas.svg()


def draw_ground(canvas: Canvas, names: list[str], top: float) -> None:
    """Draw the modules below all rooms; without arrows, of which there would be too many."""
    width, height = BOX
    rows = -(-len(names) // GROUND_COLUMNS)
    canvas.box(MARGIN, top, GROUND_COLUMNS * (width + 10) + 10, rows * (height + 10) + 38, "label")
    canvas.write(MARGIN + (GROUND_COLUMNS * (width + 10) + 10) / 2, top + 22, "below all rooms: files that import no folder of the package")
    for i, name in enumerate(names):
        row, column = divmod(i, GROUND_COLUMNS)
        room_box(canvas, MARGIN + 10 + column * (width + 10), top + 34 + row * (height + 10), name, "ground")


def room_box(canvas: Canvas, left: float, top: float, room: str, kind: str) -> None:
    """Draw a room with its name, and what it is."""
    width, height = BOX
    canvas.box(left, top, width, height, kind)
    canvas.write(left + width / 2, top + 20, room, "title")
    canvas.write(left + width / 2, top + 37, ROOMS[room])


@dataclass(frozen=True)
class Step:
    """A box of a flow: where it stands, what happens there, and the file that does it.

    Attributes
    ----------
    column, row : float
        Of the grid; a whole step apart, boxes do not touch.
    title : str
    lines : tuple of str
    file : str
        Below ``tinychat/``; empty if it is no code of the package.
    kind : str
        Of `canvas.FILLS`.
    columns : float
        How many columns wide it is.
    """

    column: float
    row: float
    title: str
    lines: tuple[str, ...] = ()
    file: str = ""
    kind: str = "code"
    columns: float = 1


COLUMN, ROW = 310, 116
BACK = 95  # how far an arrow that leads back is from the boxes


class Flow:
    """Boxes on a grid, and arrows between them."""

    def __init__(self, title: str, steps: Mapping[str, Step]) -> None:
        self.canvas = Canvas(title)
        self._steps = steps
        for step in steps.values():
            self._draw(step)

    def _place(self, name: str) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of a box."""
        step = self._steps[name]
        height = 26 + LINE_HEIGHT * (len(step.lines) + bool(step.file)) + 8 * bool(step.lines or step.file)
        left, top = MARGIN + step.column * COLUMN, MARGIN + step.row * ROW
        return left, top, left + step.columns * COLUMN - 40, top + height

    def _draw(self, step: Step) -> None:
        if step.file and not (PACKAGE / step.file).exists():
            raise FileNotFoundError(f"tinychat/{step.file} is named by a diagram: draw what took its place")
        name = next(name for name, other in self._steps.items() if other is step)
        left, top, right, bottom = self._place(name)
        middle, baseline = (left + right) / 2, top + 19
        self.canvas.box(left, top, right - left, bottom - top, step.kind)
        self.canvas.write(middle, baseline, step.title, "title")
        for line in step.lines:
            baseline += LINE_HEIGHT
            self.canvas.write(middle, baseline + 2, line)
        if step.file:
            self.canvas.write(middle, baseline + LINE_HEIGHT + 4, step.file, "file")

    def down(self, name: str, other: str, label: str = "") -> None:
        """Draw an arrow from the bottom of a box to the top of another, level in the middle if they are not in line."""
        left, _, right, bottom = self._place(name)
        other_left, top, other_right, _ = self._place(other)
        low, high = max(left, other_left), min(right, other_right)
        middle = (bottom + top) / 2
        if low < high:
            x = (low + high) / 2
            points: list[Point] = [(x, bottom), (x, top - 2)]
        else:
            x, end = (left + right) / 2, (other_left + other_right) / 2
            points = [(x, bottom), (x, middle), (end, middle), (end, top - 2)]
        self.canvas.arrow(points)
        if label:
            self.canvas.label(points[-1][0], middle, label)

    def across(self, name: str, other: str, label: str = "", both: bool = False) -> None:
        """Draw a level arrow to a box beside another, from the middle of the lower one of the two."""
        left, top, right, bottom = self._place(name)
        other_left, other_top, other_right, other_bottom = self._place(other)
        y = (max(top, other_top) + min(bottom, other_bottom)) / 2
        points = [(right, y), (other_left - 2, y)] if left < other_left else [(left, y), (other_right + 2, y)]
        self.canvas.arrow(points, both)
        if label:
            self.canvas.label((points[0][0] + points[1][0]) / 2, y - 16, label)

    def back(self, name: str, other: str, label: str) -> None:
        """Draw an arrow back up to an earlier box, beside the boxes on their left."""
        left, top, _, bottom = self._place(name)
        other_left, other_top, _, other_bottom = self._place(other)
        y, end, x = (top + bottom) / 2, (other_top + other_bottom) / 2, min(left, other_left) - BACK
        self.canvas.arrow([(left, y), (x, y), (x, end), (other_left - 2, end)])
        self.canvas.label(x, (y + end) / 2, label)


def weight() -> str:
    """Draw the way of a weight, from a checkpoint to the kernel."""
    flow = Flow(
        "The way of a weight",
        {
            "floats": Step(
                0, 0, "safetensors, PyTorch .bin", ("float32, float16, bfloat16",), "checkpoint/tensors.py", "data"
            ),
            "packed": Step(1, 0, "packed safetensors", ("AWQ, GPTQ and others",), "checkpoint/packed.py", "data"),
            "gguf": Step(2, 0, "GGUF file", ("Q4_K, Q8_0 and others",), "checkpoint/gguf_checkpoint.py", "data"),
            "checkpoint": Step(
                0,
                1,
                "Checkpoint",
                ("one interface to all tensors; the family says which of them make up a linear",),
                "checkpoint/checkpoint.py",
                columns=3,
            ),
            "texts": Step(
                0, 2, "calibration", ("texts run in float32, and show", "the inputs of each linear"), "conversion/source.py"
            ),
            "quantize": Step(
                1, 2, "quantize", ("int4, int8 or f32; each weight by itself,", "or by its inputs"), "conversion/convert.py"
            ),
            "native": Step(
                2, 2, "passthrough", ("the file's own codes and scales,", "rearranged but not changed"), "conversion/keep.py"
            ),
            "pack": Step(
                1, 3.1, "pack", ("a 64-byte line: 8 columns of 16 rows;", "a vector lane is an output row"), "models/layout.py"
            ),
            "work": Step(
                1, 4.2, "write", ("beside the target, with a journal;", "renamed when it is whole"), "conversion/unfinished.py"
            ),
            "folder": Step(
                1,
                5.3,
                "model folder",
                ("tinychat.json, model.safetensors,", "config.json and tokenizer as they were"),
                kind="data",
            ),
            "map": Step(1, 6.25, "map", ("views of the file; nothing is copied",), "models/folder.py"),
            "bind": Step(1, 7.2, "bind", ("a type says what each part is",), "engine/parameters.py"),
            "kernel": Step(
                1,
                8.15,
                "kernel",
                ("codes x int8 activations: whole numbers;", "then floats, group after group"),
                "kernels/linear.py",
            ),
        },
    )
    for source in ("floats", "packed", "gguf"):
        flow.down(source, "checkpoint")
    flow.down("checkpoint", "texts")
    flow.down("checkpoint", "quantize")
    flow.down("checkpoint", "native")
    flow.across("texts", "quantize")
    for name, other in (("quantize", "pack"), ("native", "pack"), ("pack", "work"), ("work", "folder"), ("folder", "map")):
        flow.down(name, other)
    flow.down("map", "bind")
    flow.down("bind", "kernel")
    return flow.canvas.svg()


def token() -> str:
    """Draw the way of a token, from the prompt to the screen."""
    flow = Flow(
        "The way of a token",
        {
            "messages": Step(0.6, 0, "messages", ("what was said, with roles",), "conversation/messages.py", "person"),
            "template": Step(
                0.6, 0.95, "chat template", ("the model's own, run in a helper process",), "text/template.py"
            ),
            "ids": Step(0.6, 1.9, "tokenizer", ("ids; no word of the user becomes", "a control token"), "text/tokenizer.py"),
            "run": Step(0.6, 3, "Run", ("a prompt, a request, a reply to come",), "generate/run.py"),
            "driver": Step(
                0.6, 3.95, "Driver", ("chooses what the next pass runs: a token", "of each reply, a part of prompts"),
                "generate/driver.py",
            ),
            "sequence": Step(
                0.6, 5.05, "Sequence", ("finds what is cached of the ids;", "only the rest runs"), "engine/sequence.py"
            ),
            "pool": Step(
                1.7, 5.05, "BlockPool", ("keys and values in blocks of 64", "positions, shared by prefix"), "engine/blocks.py",
                "data",
            ),
            "engine": Step(
                0.6, 6.15, "Engine", ("ids, positions and block tables", "become one job"), "engine/engine.py"
            ),
            "forward": Step(
                0.6,
                7.25,
                "forward",
                ("embedding, L layers, norm, logits:", "one compiled call on all threads"),
                "engine/forward.py",
            ),
            "cache": Step(
                1.7, 7.25, "cache", ("each layer appends keys and values,", "then attends to all of them"), "kernels/kv.py",
                "data",
            ),
            "reply": Step(
                0.6, 8.35, "Reply", ("grammar mask, sampler, stop ids;", "detokenizer, stop strings"), "generate/reply.py"
            ),
            "stream": Step(0.6, 9.45, "Stream", ("pieces of text that are final",), "generate/stream.py"),
            "screen": Step(0.6, 10.4, "screen", ("markdown, drawn while it grows",), "terminal/markdown_reply.py", "person"),
        },
    )
    names = ["messages", "template", "ids", "run", "driver", "sequence", "engine", "forward", "reply", "stream", "screen"]
    for name, other in zip(names, names[1:]):
        flow.down(name, other)
    flow.across("sequence", "pool", both=True)
    flow.across("forward", "cache", both=True)
    flow.back("reply", "driver", "the chosen id runs next")
    return flow.canvas.svg()


DRAWINGS: dict[str, Callable[[], str]] = {"rooms.svg": rooms, "weight.svg": weight, "token.svg": token}


def main() -> None:
    """Write the diagrams."""
    for name, draw in DRAWINGS.items():
        (DOCS / name).write_text(draw(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
