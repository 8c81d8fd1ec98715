"""``python -m tinychat``, and the console script: the command line, interruptible from its first moment."""

import sys

from tinychat.held_signals import held_signals


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        # Imported here: Ctrl-C may come while the libraries are still being imported, and few of them expect it.
        with held_signals():
            from tinychat.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
