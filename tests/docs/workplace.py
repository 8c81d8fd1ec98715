"""A folder in which the commands and snippets of the documentation find the files that they name."""

import os
import shutil
import sys
from pathlib import Path

from tinychat.store.local import store_folder

REPO = Path(__file__).resolve().parents[2]
DEMO, CHECKPOINT = REPO / "weights" / "demo", REPO / "weights" / "demo-hf"
STORED = ("smollm2-135m", "qwen3-0.6b")
TEXTS = {
    "notes.txt": "We meet on Monday. Who brings the cake?\n",
    "text.txt": "Once upon a time there was a cat. The cat had a friend, a small dog. They lived in a house.\n" * 4,
}
DIFF = "-the cat sat\n+the cat slept\n"


def make_workplace(folder, monkeypatch):
    """Fill a folder with models and texts of these names, all models being the demo, and return it."""
    monkeypatch.setenv("TINYCHAT_HOME", str(folder / "home"))
    for name in STORED:
        link(store_folder() / name, DEMO)
    for name in ("MODEL", "OTHER"):
        link(folder / name, DEMO)
    link(folder / "path" / "to" / "checkpoint", CHECKPOINT)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    programs = folder / "bin"
    add_program(programs / "tinychat", f'exec "{sys.executable}" -P -m tinychat "$@"')
    add_program(programs / "git", f"printf '%s' '{DIFF}'")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    return folder


def link(path, target):
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.symlink_to(target, target_is_directory=True)
    except OSError:
        # Windows lets not everybody make links.
        shutil.copytree(target, path)


def add_program(path, line):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
