"""Write what the decoder computes as digests, to show that a change of its code changes no bit.

    .venv/bin/python scripts/make_digests.py before.json      # then change the code
    .venv/bin/python scripts/make_digests.py after.json && cmp before.json after.json

For every checkpoint of ``tests/families.py``, in each quantization, with each type of cache: the sha256 of the logits
and the greedy ids, for 1 and 2 threads and chunks of 1, 17 and 256 tokens, and again after the cache was rewound, a
part of it dropped, and resized. ``--small`` does so for the few that ``tests/test_digests.py`` compares with
``tests/goldens/digests.json``; the number contract makes these the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

import digests  # noqa: E402
import families  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description="Write digests of what the decoder computes.")
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--small", action="store_true", help="only what the tests compare")
    arguments = parser.parse_args()
    cases = digests.SMALL if arguments.small else digests.cases(families.BY_NAME)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            sys.stderr.write(f"{case}\n")
            found[str(case)] = digests.digests_of(case, Path(folder))
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
