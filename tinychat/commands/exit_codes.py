"""The exit codes of the program."""

import signal

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_CUT, EXIT_INTERRUPTED = 0, 1, 2, 3, 128 + signal.SIGINT

EXIT_CODES = {
    EXIT_DONE: "Done",
    EXIT_ERROR: "An error, explained in one line on stderr",
    EXIT_USAGE: "Wrong usage",
    EXIT_CUT: "A reply was cut, if --fail-on-cut asks for this code",
    EXIT_INTERRUPTED: "Interrupted by Ctrl-C; another signal that ends the program gives 128 and its number",
}
"""Meaning of each code, for the documentation."""
