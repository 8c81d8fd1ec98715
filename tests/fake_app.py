"""The real program with a model of prepared replies, for tests that need a process of its own."""

import signal
import sys

from fake_model import Replies, fake_model

from tinychat.cli import main

REPLIES = {
    "chatty": ("Hello 😀!", "I think that wait...", "Good."),
    "colourful": ("Red \x1b[31malert\x1b[0m.",),
    "endless": ("flood " * 20_000,),
    "slow": ("Please wait...",),
}


def load(name, options):
    """Return the model of this name; where its reply says "wait" it waits for Ctrl-C."""
    model = fake_model(Replies(*REPLIES[name]), name=name, context_size=2**20)

    def wait_where_told(_count):
        written = bytes(token_id for token_id in model.engine.cached_ids[-4:] if token_id < 256)
        if written.endswith(b"wa"):
            # From before the word is shown: a Ctrl-C that is quicker than sigwait must not get lost.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        elif written == b"wait":
            signal.sigwait({signal.SIGINT})
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.raise_signal(signal.SIGINT)

    model.engine._before_step = wait_where_told
    return model


if __name__ == "__main__":
    sys.exit(main(load=load))
