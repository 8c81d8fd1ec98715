"""The real program with a model of prepared replies, for tests that need a process of its own."""

import os
import signal
import sys
import time

from fake_model import ASSISTANT, EOS, USER, Replies, fake_model
from fake_tools import call

from tinychat.cli import main
from tinychat.commands import first_start
from tinychat.commands.progress import progress_bar
from tinychat.errors import StoreError
from tinychat.store import better_model

# Forty that differ: a reply that repeats itself would be pointed out.
WORDS = "".join(f"{chr(97 + n % 26)}word{chr(97 + 7 * n % 26)} " for n in range(40))
REPLIES = {
    "curious": (
        "Let me look. " + call("list_files", path="."),
        call("read_file", path="notes.txt"),
        "You wrote in notes.txt that *rain* is coming.",
        "And that is all.",
    ),
    "echoing": (call("plain_echo", text="rain"), "Heard."),
    "commanding": (call("run_command", command=["sleep", "60"]), "Never.", "Awake."),
    "chatty": ("Hello 😀!", "I think that wait...", "Good."),
    "colourful": ("Red \x1b[31malert\x1b[0m.",),
    "endless": ("flood " * 20_000,),
    "slow": ("Please wait...",),
    "polyglot": ("漢字 и emoji 👩‍🚀 e\u0301 😀",),
    "markdown": ("# Title\n\nSome **bold** text.\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",),
    "pensive": ("<think>\nLet me see.\n</think>\n\nYes.", "<think>\nAgain?\n</think>\n\nNo."),
    "wide": (
        "|".join(f"name {n}" for n in range(10))
        + "\n"
        + "|".join(["---"] * 10)
        + "\n"
        + "|".join(f"alpha{n} beta{n}" for n in range(10)),
    ),
    "mathematical": ("So \\(a_1 * b_1\\) is *it*.\n\n\\[\nx = \\{ a_1 * b_1 * c \\}\n\\]\n\n$$\\int_0^1 f$$\n",),
    "essay": ("One two three. " * 6, "The sentence goes on " * 8 + "to its end.\n\nThe last words."),
    "brooding": ("<think>Considering considerations considerably, consider consideration.</think>Yes.",),
    "summing": ("One.", "Two.", "In sum wait...", "In sum, we spoke."),
    "wordy": (WORDS + "wait " + WORDS,),
}


class Counting:
    """Answers each message with its number of lines and its last line."""

    def __call__(self, ids):
        if ASSISTANT not in ids:
            return EOS
        spoken = ids[::-1].index(ASSISTANT)
        end = len(ids) - 1 - spoken
        begin = len(ids) - ids[::-1].index(USER)
        lines = bytes(ids[begin:end]).decode().split("\n")
        reply = f"{len(lines)} lines, last: {lines[-1]}".encode()
        return reply[spoken] if spoken < len(reply) else EOS


def load(name, options):
    """Return the model of this name, of None for the usual one; where its reply says "wait" it waits for Ctrl-C.

    The model "small" was trained on 512 tokens.

    The model "reader" waits in the fourth chunk of the first prompt that has as many; "heavy" takes
    a second to load, behind a progress bar, and another to take a context of another size.
    """
    if name == "missing":
        raise StoreError("there is no model of this name")
    if name == "heavy":
        with progress_bar("loading") as report:
            for done in range(50):
                report(done, 50)
                time.sleep(0.02)
    replies = Replies(*REPLIES[name]) if name in REPLIES else Counting()
    trained = 512 if name == "small" else 2**20
    model = fake_model(
        replies, name=name or "usual", context_size=options.context or 2**20, chunk_size=8, trained_length=trained
    )
    sequence = model.sequence
    if name == "heavy":
        resize = sequence.resize
        sequence.resize = lambda size: [time.sleep(1), resize(size)]
    signals, writer = os.pipe()
    os.set_blocking(writer, False)
    chunks = 0

    def wait_where_told(_count):
        nonlocal chunks
        written = bytes(token_id for token_id in sequence.ids[-4:] if token_id < 256)
        chunks += name == "reader"
        if written.endswith(b"wa") or chunks == 3:
            # From before the word is shown: a Ctrl-C that is quicker than the waiting must not get lost.
            signal.set_wakeup_fd(writer)
        elif written.endswith(b"wai"):
            # Longer than drawings wait for each other on a busy machine: what it wrote is drawn before it waits.
            time.sleep(1)
        elif written == b"wait" or chunks == 4:
            os.read(signals, 1)
            signal.set_wakeup_fd(-1)

    sequence._before_step = wait_where_told
    return model


if __name__ == "__main__":
    # A machine that runs small models well, whatever this one is, and one that need not be waited for.
    better_model.memory_bandwidth = lambda size: 20.0
    better_model.available_memory_bytes = lambda: 8 << 30
    first_start.SECONDS = float(os.environ.get("SECONDS_TO_ANSWER", first_start.SECONDS))
    sys.exit(main(load=load))
