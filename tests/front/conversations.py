"""Conversations with the demo model through a pipe, in a context that they outgrow, under each overflow policy."""

import re

from front.program import Program, indented
from front.replies import DRAFT, SEEDS, THREADS, digest

POLICIES = ("stop", "drop", "shift")
WHOLE = 2  # conversations of each policy that stand as texts beside their digests
CONTEXTS = (80, 64)
LINES = """\
Hello!
My name is Miriam.
Tell me a story about a fox.
/regen
What does a cow say?
/undo
Tell me a story about a robot.
What is my name?
/edit 2
Tell me a story about a whale who can sing.
/retry temperature=1.2 seed=5
/set temperature 0
What is the capital of France?
/context
/tokens Hello, fox!
/why 2
/undo 2
/redo
/show
"""
# Where a context is too small for the whole conversation, `stop` ends it with the first message that does not fit.
SHORT = "Hello!\nTell me a story about a fox.\n/continue\n/set context 96\nWhat does a cow say?\nHello!\n/show\n"


def record_conversations(folder):
    """Return a file for each policy."""
    program = Program(folder)
    return {f"{policy}.txt": "".join(_conversations(program, policy)) for policy in POLICIES}


def _conversations(program, policy):
    for seed in SEEDS:
        context = CONTEXTS[seed % len(CONTEXTS)]
        given = f"--seed {seed} --context {context} --overflow {policy} --max-tokens 32 --threads {THREADS}".split()
        lines = SHORT if seed % 4 > 1 else LINES
        ended, other = (_run(program, *given, "--draft", draft, stdin=lines) for draft in DRAFT)
        assert ended == other, f"drafts change the conversation of seed {seed}"
        yield f"seed {seed}: exit code {ended.code}, replies {digest(ended.out)}, notices {digest(ended.err)}\n"
        if seed < WHOLE or seed == len(SEEDS) - 1:
            yield f"{indented(ended.out)}  notices\n{indented(ended.err)}"


def _run(program, *flags, stdin):
    """Chat; return what was written, but for the line of /show that tells of drafts."""
    ended = program.run("chat", "demo", *flags, stdin=stdin)
    return ended._replace(err=re.sub(r"^draft  .*\n", "", ended.err, flags=re.MULTILINE))
