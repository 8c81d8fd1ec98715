"""Draw the diagrams of docs/architecture.md: the rooms of the package, the way of a weight, the way of a token.

    .venv/bin/python scripts/draw_architecture.py     # writes docs/rooms.svg, docs/weight.svg, docs/token.svg

The rooms and their arrows are computed from the imports of the code. The same code always gives the same files, and a
test compares them: draw again when a room, an import between rooms or a file that a diagram names has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from diagrams.canvas import Canvas, Point  # noqa: E402
from diagrams.flow import Flow  # noqa: E402
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
    "client": "models of servers",
    "commands": "one command per file",
    "configuration": "config.toml",
    "control_group": "limits of Linux",
    "conversation": "messages and history",
    "conversion": "makes model folders",
    "engine": "runs a model",
    "errors": "what is raised",
    "file_lock": "one writer at a time",
    "files": "reads files of others",
    "generate": "writes replies",
    "held_signals": "signals that wait",
    "images": "pixels to rows",
    "installing": "commands for extras",
    "json_file": "reads JSON of others",
    "kernels": "compiled operations",
    "limited_process": "helpers with limits",
    "machine": "cores and memory",
    "macos": "calls of macOS",
    "mcp": "tools of other programs",
    "memory_shortage": "when it is short",
    "models": "what a model is",
    "processor": "its features",
    "ray": "actors and replicas",
    "rows": "answers tables",
    "serve": "for other programs",
    "setting_kinds": "types of settings",
    "settings": "the table of settings",
    "store": "where models are",
    "terminal": "drawing and keys",
    "text": "tokenizers, templates",
    "tools": "calls that models write",
    "user_folders": "folders of one user",
    "windows": "calls of Windows",
    "worker_threads": "threads beside",
}
# Where a step stands (column, row), its kind, and what is written in it; a file of the package comes last.
WEIGHT = """
floats     0   0    data   safetensors, PyTorch .bin | float32, float16, bfloat16 | checkpoint/tensors.py
packed     1   0    data   packed safetensors | AWQ, GPTQ and others | checkpoint/packed.py
gguf       2   0    data   GGUF file | Q4_K, Q8_0 and others | checkpoint/gguf_tensors.py
checkpoint 0   1    code*3 Checkpoint | one interface; the family names the tensors | checkpoint/checkpoint.py
texts      0   2    code   calibration | texts in float32 show the inputs | of each linear | conversion/source.py
quantize   1   2    code   quantize | int4, int8 or f32: each by itself, | or by its inputs | conversion/convert.py
native     2   2    code   passthrough | the file's own codes | and scales, rearranged | conversion/passthrough.py
pack       1   3.1  code   pack | a 64-byte line: 8 columns of 16 rows; | a lane is an output row | models/layout.py
work       1   4.2  code   write | beside the target, with a journal; | renamed when whole | conversion/unfinished.py
folder     1   5.3  data   model folder | tinychat.json, model.safetensors, | config.json, tokenizer
map        1   6.25 code   map | views of the file; nothing is copied | models/folder.py
bind       1   7.2  code   bind | a type says what each part is | engine/parameters.py
kernel     1   8.15 code   kernel | codes x int8 activations: whole numbers; | then floats, by group | kernels/linear.py
"""
TOKEN = """
messages   0.6 0    person messages | what was said, with roles | conversation/messages.py
template   0.6 0.95 code   chat template | the model's own, run in a helper process | text/template.py
ids        0.6 1.9  code   tokenizer | ids; no word of the user becomes | a control token | text/tokenizer.py
run        0.6 3    code   Run | a prompt, a request, a reply to come | generate/run.py
driver     0.6 3.95 code   Driver | plans a pass: a token of each reply, | a part of prompts | generate/driver.py
sequence   0.6 5.05 code   Sequence | finds what is cached of the ids; | only the rest runs | engine/sequence.py
pool       1.7 5.05 data   BlockPool | keys and values in blocks of 64 | positions, shared by prefix | engine/blocks.py
engine     0.6 6.15 code   Engine | ids, positions and block tables | become one job | engine/engine.py
forward    0.6 7.25 code   forward | embedding, L layers, norm, logits: | one compiled call | engine/forward.py
cache      1.7 7.25 data   cache | each layer appends keys and values, | then attends to them | kernels/kv.py
reply      0.6 8.35 code   Reply | grammar mask, sampler, stop ids; | detokenizer, stop strings | generate/reply.py
stream     0.6 9.45 code   Stream | text that is final, as deltas | generate/stream.py
screen     0.6 10.4 person screen | markdown, drawn while it grows | terminal/markdown_reply.py
"""
BOX, GAP, FLOOR, WAY = (168, 46), 22, 92, 20
GROUND_COLUMNS = 4
MARGIN = 12


def ground_of(graph: Graph) -> set[str]:
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
    ground = ground_of(graph)
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
    band = GROUND_COLUMNS * (width + 10) + 10
    canvas.box(MARGIN, top, band, rows * (height + 10) + 38, "label")
    canvas.write(MARGIN + band / 2, top + 22, "below all rooms: files that import no folder of the package")
    for i, name in enumerate(names):
        row, column = divmod(i, GROUND_COLUMNS)
        room_box(canvas, MARGIN + 10 + column * (width + 10), top + 34 + row * (height + 10), name, "ground")


def room_box(canvas: Canvas, left: float, top: float, room: str, kind: str) -> None:
    """Draw a room with its name, and what it is."""
    width, height = BOX
    canvas.box(left, top, width, height, kind)
    canvas.write(left + width / 2, top + 20, room, "title")
    canvas.write(left + width / 2, top + 37, ROOMS.get(room, ""))


def weight() -> str:
    """Draw the way of a weight, from a checkpoint to the kernel."""
    flow = Flow("The way of a weight", WEIGHT, PACKAGE)
    for source in ("floats", "packed", "gguf"):
        flow.down(source, "checkpoint")
    for way in ("texts", "quantize", "native"):
        flow.down("checkpoint", way)
    flow.across("texts", "quantize")
    flow.down("native", "pack")
    flow.down("quantize", "pack", "work", "folder", "map", "bind", "kernel")
    return flow.canvas.svg()


def token() -> str:
    """Draw the way of a token, from the prompt to the screen."""
    flow = Flow("The way of a token", TOKEN, PACKAGE)
    flow.down(
        "messages", "template", "ids", "run", "driver", "sequence", "engine", "forward", "reply", "stream", "screen"
    )
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
