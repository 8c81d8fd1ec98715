"""``python -m tinychat``, and the console script: the command line, interruptible from its first moment."""

import signal
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    # Until signals can be held, Ctrl-C ends the program at once, and without Python's traceback. Where it is ignored,
    # as behind a shell's &, it stays ignored.
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tinychat.held_signals import held_signals

    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Imported here: Ctrl-C may come while the libraries are still being imported, and few of them expect it.
        with held_signals():
            from tinychat.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
