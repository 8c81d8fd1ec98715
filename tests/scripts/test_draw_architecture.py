"""The diagrams are what the script draws of the present code, and can be read on light and dark pages."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import draw_architecture
import pytest
from diagrams import canvas, flow, layered
from import_graph import room_graph

NAMESPACE = "{http://www.w3.org/2000/svg}"
DRAWINGS = pytest.mark.parametrize("name", draw_architecture.DRAWINGS)
# Pages of the hub in its light and dark themes, and plain white and black.
PAGES = ("#ffffff", "#0d1117", "#000000")
# Pixels of a character in DejaVu, a wide font: of the title's weight, of the file's fixed width, of the rest.
WIDTHS = {"title": 8, "file": 6.7, "small": 6.5}


@DRAWINGS
def test_the_diagrams_are_those_of_the_code(name):
    drawn = draw_architecture.DRAWINGS[name]()
    found = (draw_architecture.DOCS / name).read_text(encoding="utf-8")
    assert found == drawn, "run .venv/bin/python scripts/draw_architecture.py"


def test_the_rooms_are_drawn_and_described():
    drawn = draw_architecture.rooms()
    page = (draw_architecture.DOCS / "architecture.md").read_text(encoding="utf-8")
    graph = room_graph()
    assert draw_architecture.ROOMS.keys() == graph.keys(), "ROOMS of the script says what each room is"
    for room in graph:
        assert f">{room}</text>" in drawn
    folders = [room for room in graph if (draw_architecture.PACKAGE / room).is_dir()]
    missing = [room for room in folders if f"`{room}`" not in page]
    assert not missing, f"the table of rooms in docs/architecture.md lacks {missing}"


def test_an_arrow_is_drawn_for_each_import_that_no_longer_way_stands_for(monkeypatch):
    graph = {"api": {"engine", "kernels", "errors"}, "engine": {"kernels"}, "kernels": set(), "errors": set()}
    monkeypatch.setattr(draw_architecture, "room_graph", lambda: graph)
    assert draw_architecture.rooms().count('class="arrow" d=') == 2
    graph["kernels"].add("models")
    graph["models"] = set()
    assert draw_architecture.rooms().count('class="arrow" d=') == 3


def boxes_and_texts(name):
    """Return the rectangles (left, top, right, bottom) of a drawing, and its texts with style and place."""
    root = ElementTree.fromstring(draw_architecture.DRAWINGS[name]())
    boxes = []
    for one in root.iter(f"{NAMESPACE}rect"):
        left, top, width, height = (int(one.get(key)) for key in ("x", "y", "width", "height"))
        boxes.append((left, top, left + width, top + height))
    return boxes, [
        (one.text, one.get("class"), int(one.get("x")), int(one.get("y"))) for one in root.iter(f"{NAMESPACE}text")
    ]


@DRAWINGS
def test_texts_stand_inside_of_boxes(name):
    boxes, texts = boxes_and_texts(name)
    assert texts
    for text, style, x, y in texts:
        half = WIDTHS[style] * len(text) / 2
        inside = [box for box in boxes if box[0] <= x - half and x + half <= box[2] and box[1] + 8 <= y <= box[3] - 4]
        assert inside, f"{text!r} needs a wider box"


@DRAWINGS
def test_boxes_do_not_overlap_but_inside_of_each_other(name):
    boxes, _ = boxes_and_texts(name)
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:i]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            within = other[0] <= left and right <= other[2] and other[1] <= top and bottom <= other[3]
            assert apart or within, f"{other} and {(left, top, right, bottom)}"


def luminance(colour):
    """Return the relative luminance of a colour, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour, other):
    lighter, darker = sorted((luminance(colour), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_colours_are_seen_on_light_and_dark_pages():
    assert min(contrast(canvas.TEXT, fill) for fill in canvas.FILLS.values()) >= 7
    assert min(contrast(canvas.LINE, page) for page in PAGES) >= 3
    written = {found for name in draw_architecture.DRAWINGS for found in re.findall(r'fill="(#\w+)"', drawing(name))}
    assert written <= {*canvas.FILLS.values()}


def drawing(name):
    return draw_architecture.DRAWINGS[name]()


def test_a_flow_names_files_that_exist():
    with pytest.raises(FileNotFoundError, match=r"engine/none\.py is named by a diagram"):
        flow.Flow("none", "a 0 0 code a | engine/none.py", draw_architecture.PACKAGE)


def test_a_graph_is_laid_out_in_floors_without_overlaps():
    graph = {"a": {"c", "d"}, "b": {"d"}, "c": {"e"}, "d": {"e"}, "e": set(), "f": {"e"}}
    assert layered.reduced(graph | {"a": {"c", "d", "e"}}) == graph
    found = layered.layout(layered.reduced(graph | {"f": {"a", "e"}}), 10, 2)
    assert [sorted(map(str, floor)) for floor in found.floors][-1] == ["e"]
    for floor in found.floors:
        places = [found.x[node] for node in floor]
        assert all(right - left >= 2 for left, right in pairwise(places))
