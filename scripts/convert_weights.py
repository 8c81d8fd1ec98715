#!/usr/bin/env python3
"""Convert a Hugging Face checkpoint into a model folder, in a checkout that is not installed as a command.

    .venv/bin/python scripts/convert_weights.py SRC DST [--quant int4] [--group-size 32]

The arguments are those of ``tinychat convert``.
"""

import sys

from tinychat.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
