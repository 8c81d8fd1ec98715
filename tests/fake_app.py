"""The real program with a model of prepared replies, for tests that need a process of its own."""

import signal
import sys

from fake_model import Replies, fake_model

from tinychat.cli import main

REPLIES = (
    "Hello 😀!",
    "I think that wait",
    "Red \x1b[31malert\x1b[0m.",
    "The end.",
)
FLOOD = "flood " * 20_000


def load(name, options):
    """Return the model; where its reply says "wait" it waits for Ctrl-C."""
    replies = (FLOOD,) if "flood" in sys.argv else REPLIES
    model = fake_model(Replies(*replies), context_size=2**20)

    def wait_where_told(_count):
        if bytes(token_id for token_id in model.engine.cached_ids[-4:] if token_id < 256) == b"wait":
            signal.pause()

    model.engine._before_step = wait_where_told
    return model


if __name__ == "__main__":
    sys.exit(main(load=load))
