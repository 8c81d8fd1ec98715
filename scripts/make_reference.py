"""Write the reference of the public names of tinychat as HTML, from their docstrings.

    .venv/bin/python scripts/make_reference.py [FOLDER]     # build/reference when omitted, which git ignores

A warning ends it with an error: a public name that does not resolve, an annotation that cannot be read.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import is_dataclass
from pathlib import Path

import pdoc
import pdoc.render
from pdoc.doc_types import resolve_annotations

import tinychat

REPO = Path(__file__).resolve().parents[1]


def annotations_of(found: type) -> dict[str, object]:
    """Return the types of a dataclass's fields; each is written with the names of the module that has the field."""
    types: dict[str, object] = {}
    for parent in reversed(found.__mro__):
        written = vars(parent).get("__annotations__", {})
        types |= resolve_annotations(written, sys.modules[parent.__module__], None, found.__name__)
    return types


def write_reference(folder: Path) -> None:
    """Write a page of the package and one of its errors, and what searches them."""
    # They are found when somebody asks for them: pdoc looks at what is there.
    for found in [getattr(tinychat, name) for name in tinychat.__all__]:
        if is_dataclass(found):
            found.__init__.__annotations__ = annotations_of(found)
    pdoc.render.configure(docformat="numpy", show_source=False, footer_text=f"tinychat {tinychat.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc("tinychat", output_directory=folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else REPO / "build" / "reference"
    write_reference(target)
    print(f"written: {target / 'tinychat.html'}")
