"""Send signals at random moments of start and generation, and see that each does what it should.

    .venv/bin/python scripts/signals.py [COUNT] [--seed SEED] [MODEL]

A third of the runs are batches, the others chats in a terminal of their own. SIGTERM and SIGHUP must end the program
with 128 and their number, SIGINT a batch or a start with 130; in a chat SIGINT ends the reply, and the chat goes on.
The terminal must be as it was, the conversation and the lines of results whole. Prints what went wrong and, at the
end, how often each end was seen; exit code 1 if anything did.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections import Counter
from pathlib import Path

import pexpect
from trial_arguments import trial_arguments

from tinychat.conversation.store import SessionStore
from tinychat.errors import TinychatError

PROMPT = "Tell me a story"
# So many that none is ever the last.
TASKS = '{"prompt": "Once upon a time", "max_tokens": 100}\n' * 5000
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# From here on the moments are those of our own program; before, Python itself starts, and dies in its own way.
LATEST = {"batch": 1.5, "chat": 2.5}
PATIENCE = 10.0
# A message that had no reply yet stands in the line again.
EMPTY_THE_LINE, CTRL_D = "\x15", "\x04"


class Trial:
    """One run of the program and the signal that it gets."""

    def __init__(self, kind: str, number: signal.Signals, delay: float, model: list[str]) -> None:
        self.kind, self.number, self.delay, self.model = kind, number, delay, model

    def __str__(self) -> str:
        return f"{self.kind}, {self.number.name} after {self.delay:.3f} s"

    def run(self) -> tuple[str, list[str]]:
        """Return how the program ended, and what was wrong with that."""
        with tempfile.TemporaryDirectory() as home:
            code, output, wrong = (self._batch if self.kind == "batch" else self._chat)(home)
            wrong += damaged_conversations(Path(home))
        if "Exception ignored" in output or "internal error" in output:
            wrong.append(output[-300:])
        if code not in self._expected_codes(output):
            wrong.append(f"exit code {code}: {output[-300:]!r}")
        return f"{self.kind} {self.number.name} {code}", wrong

    def _expected_codes(self, output: str) -> set[int]:
        # Before `tinychat` has control, Python dies of the signal, or with a traceback of its own.
        by_python = {-self.number} | ({1} if "KeyboardInterrupt" in output else set())
        goes_on = {0} if self.kind == "chat" and self.number == signal.SIGINT else set()
        return {128 + self.number, *by_python, *goes_on}

    def _batch(self, home: str) -> tuple[int, str, list[str]]:
        source, target = Path(home, "in.jsonl"), Path(home, "out.jsonl")
        source.write_text(TASKS)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tinychat", "batch", source, *self.model, "-o", target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TINYCHAT_HOME": home},
            text=True,
            errors="replace",
        )
        time.sleep(self.delay)
        process.send_signal(self.number)
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), process.communicate()[0], [f"still runs {PATIENCE:.0f} s after the signal"]
        is_whole = not target.exists() or target.read_bytes().endswith(b"\n")
        return process.returncode, output, [] if is_whole else [f"{target.name} does not end with a whole line"]

    def _chat(self, home: str) -> tuple[int, str, list[str]]:
        environment = os.environ | {"TINYCHAT_HOME": home, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        command = ["-P", "-m", "tinychat", "chat", *self.model]
        child = pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", codec_errors="replace")
        child.delaybeforesend = None
        child.send(PROMPT + "\r")
        start, output = time.monotonic(), ""
        while time.monotonic() < start + self.delay:
            output += read(child, start + self.delay - time.monotonic())
        child.kill(self.number)
        deadline = time.monotonic() + PATIENCE
        while child.isalive() and time.monotonic() < deadline:
            output += read(child, 0.2)
            # At the prompt it leaves; during a reply it waits for the prompt.
            if self.number == signal.SIGINT and child.isalive():
                child.send(EMPTY_THE_LINE + CTRL_D)
        wrong = []
        if child.isalive():
            wrong.append(f"still runs {PATIENCE:.0f} s after the signal")
            child.kill(signal.SIGKILL)
            child.wait()
        elif termios.tcgetattr(child.child_fd)[:4] != fresh_terminal()[:4]:
            wrong.append("the terminal is not as it was")
        code = child.exitstatus if child.exitstatus is not None else -(child.signalstatus or 0)
        child.close(force=True)
        return code, output, wrong


def read(child: pexpect.spawn, seconds: float) -> str:
    """Return what the program writes within some time."""
    try:
        return child.read_nonblocking(10_000, timeout=max(seconds, 0.001))
    except (pexpect.TIMEOUT, pexpect.EOF):
        time.sleep(min(max(seconds, 0), 0.05))
        return ""


def fresh_terminal() -> list[object]:
    """Return the settings of a terminal that no program has touched: `spawn` may return after the chat has begun."""
    controller, terminal = os.openpty()
    try:
        return termios.tcgetattr(controller)
    finally:
        os.close(terminal)
        os.close(controller)


def damaged_conversations(home: Path) -> list[str]:
    """Return what is wrong with the files of a state folder: conversations that cannot be read, files in the making."""
    wrong, store = [], SessionStore(home / "sessions")
    for name in store.names():
        try:
            roles = [message.role for message in store.read(name).messages]
        except TinychatError as error:
            wrong.append(str(error))
        else:
            if roles != ["user", "assistant"] * (len(roles) // 2):
                wrong.append(f"{name} has messages of {roles}")
    return wrong + [f"{path.name} was left" for path in home.rglob("*.tmp")]


def compile_kernels(model: list[str]) -> None:
    """Run the program once: a signal that comes while a kernel compiles waits for it, for many seconds perhaps."""
    command = [sys.executable, "-P", "-m", "tinychat", "complete", *model, "-p", PROMPT, "--max-tokens", "2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    """Run the trials; return the exit code."""
    arguments = trial_arguments(__doc__, "count", 500)
    # A shell in the background, or nohup, has signals ignored, and what it starts goes on ignoring them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    compile_kernels(arguments.model)
    draw, ends, failed = random.Random(arguments.seed), Counter[str](), 0
    for _ in range(arguments.count):
        kind = draw.choice(("batch", "chat", "chat"))
        trial = Trial(kind, draw.choice(SIGNALS), draw.uniform(0.0, LATEST[kind]), arguments.model)
        end, wrong = trial.run()
        ends[end] += 1
        failed += bool(wrong)
        for line in wrong:
            print(f"{trial}: {line}", flush=True)
    for end, count in sorted(ends.items()):
        print(f"{count:5} {end}")
    print(f"{failed} of {arguments.count} went wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
