"""``python -m tinychat``: the same as the console script."""

import sys

from tinychat.cli import main

if __name__ == "__main__":
    sys.exit(main())
