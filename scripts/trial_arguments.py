"""The command line that the scripts of random trials share: how much, from which seed, with which models."""

import argparse


def trial_arguments(description: str, what: str, default: float, kind: type = int) -> argparse.Namespace:
    """Parse ``[WHAT] [--seed SEED] [MODEL ...]`` of the command line.

    Parameters
    ----------
    description : str
        For --help, shown as it is.
    what : str
        Name of the first argument.
    default, kind
        Its value where it is not given, and its type.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(what, nargs="?", type=kind, default=default)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
