"""Record what a user of the front half can see, to show that a change of its code changes none of it.

    .venv/bin/python scripts/record_front.py [RECORDING ...]     # help, config, errors, ...; all when omitted
    .venv/bin/python scripts/record_front.py --save-sessions     # make the session files that are not there yet

Writes ``tests/goldens/front``, which ``tests/test_front_goldens.py`` compares. Record again only where a text was meant
to change, and review the difference: it is what users will notice. The files in ``tests/goldens/saved_sessions`` are
never made again: that they load is the proof that the old conversations of users do.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from front.recordings import GOLDENS, RECORDINGS, golden_of  # noqa: E402
from front.sessions import SAVED, make_saved  # noqa: E402


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Record what a user of the front half can see.")
    parser.add_argument("names", metavar="RECORDING", nargs="*", help=f"{', '.join(RECORDINGS)}; all when omitted")
    parser.add_argument("--save-sessions", action="store_true", help="make the session files that are not there yet")
    arguments = parser.parse_args(given)
    if unknown := set(arguments.names) - RECORDINGS.keys():
        parser.error(f"unknown recording {min(unknown)}; expected some of {', '.join(RECORDINGS)}")
    if arguments.save_sessions:
        with tempfile.TemporaryDirectory() as folder:
            there = {path.name: path.read_text(encoding="utf-8") for path in SAVED.glob("*.json")}
            write(SAVED, make_saved(Path(folder)) | there, there)
        return
    for name in arguments.names or RECORDINGS:
        with tempfile.TemporaryDirectory() as folder:
            write(GOLDENS / name, RECORDINGS[name](Path(folder)), golden_of(name))


def write(folder: Path, found: dict[str, str], golden: dict[str, str]) -> None:
    """Write the files that differ from the golden ones, and remove those that are no longer recorded."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in golden.keys() - found.keys():
        sys.stderr.write(f"removed: {folder.name}/{file}\n")
        (folder / file).unlink()
    for file, text in found.items():
        if golden.get(file) != text:
            sys.stderr.write(f"recorded: {folder.name}/{file}\n")
            (folder / file).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
