"""Converse for a long time, at random, and see that nothing grows and nothing is wrong.

    .venv/bin/python scripts/soak.py [SECONDS] [--seed SEED] [MODEL ...]

Turns, stopped replies, undo, regenerate, fork, load, clear, other contexts, other policies of a full context and other
models follow each other in an order drawn from the seed, through the library: a `Chat` in its `Workspace`. Without
MODEL the demo model takes turns with a copy of it in another type of cache.

Now and then, and at the end, each model's cache must hold just what a fresh run of the same tokens computes: the
logits are compared bit by bit, except where a full context was shifted, which rounds keys anew. Memory and open files
are counted once everything has been done often (`SETTLING_STEPS`, and a tenth of the time) and at the end, at least as
many steps later: more than `GROWTH_BYTES` in between, or one open file or thread more, is an error. Exit code 1 then.
"""

import ctypes
import gc
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from trial_arguments import trial_arguments

from tinychat.api import locate
from tinychat.chat.settings import change_setting
from tinychat.chat.workspace import Models, Workspace
from tinychat.conversation.conversation import Chat
from tinychat.conversation.store import SessionStore
from tinychat.engine.blocks import bytes_per_position
from tinychat.engine.loading import default_kv
from tinychat.errors import ContextError, SettingError
from tinychat.generate.loading import load_folder
from tinychat.generate.model import Model
from tinychat.models.folder import open_model_folder

WORDS = "tell me a story of the fox and what is seven plus two please why was she sad in an old tree house".split()
CONTEXTS = (256, 300, 512, 777, 1024)
POLICIES = ("drop", "shift", "stop", "summarise")
# As many messages as a conversation may have before a new one is begun: files and prompts stay small.
MOST_MESSAGES = 60
STEPS_BETWEEN_CHECKS = 50
ENDING_SECONDS = 0.1
# Pools, code loaded on first use and the tokenizer's cache of words settle in so many steps, however slow the machine.
SETTLING_STEPS = 250
PR_SET_THP_DISABLE = 41
# What grows by more after that has a leak.
GROWTH_BYTES = 16 << 20


class Soak:
    """Models that take turns, one conversation, and what has been done to it.

    Parameters
    ----------
    models : dict of str to Model
    folder : Path
        Where conversations are saved.
    seed : int
    """

    def __init__(self, models: dict[str, Model], folder: Path, seed: int) -> None:
        self.models = models
        self.draw = random.Random(seed)
        self.done: Counter[str] = Counter()
        chat = Chat(next(iter(models.values())), max_tokens=40, overflow="shift", seed=seed, temperature=1.0)
        self.workspace = Workspace(chat, SessionStore(folder), models=Models(open=models.__getitem__))
        self.workspace.autosave()
        # Some come more often than others: what has been said is what the rest works on.
        self._steps: list[Callable[[], None]] = [
            *[self.turn] * 6,
            *[self.stopped_turn] * 2,
            *[self.regenerate] * 2,
            *[self.undo] * 2,
            self.fork,
            self.load,
            self.clear,
            self.resize,
            self.overflow,
            self.switch,
        ]

    @property
    def chat(self) -> Chat:
        """The conversation."""
        return self.workspace.chat

    def step(self) -> None:
        """Do something that was drawn; what the conversation refuses, as it may, counts as done too."""
        step = self.draw.choice(self._steps)
        name = step.__name__
        try:
            step()
        except (ContextError, SettingError):
            name += " (refused)"
        self.done[name] += 1
        if len(self.chat.messages) > MOST_MESSAGES:
            self.clear()

    def turn(self) -> None:
        """Say something and take the whole reply."""
        self.chat.say(self._text())

    def stopped_turn(self) -> None:
        """Say something and stop the reply after some pieces, or its prompt while it is read."""
        left = self.draw.randrange(6)

        def cancelled() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        for _ in self.chat.stream(self._text(), cancelled=cancelled):
            pass

    def regenerate(self) -> None:
        """Let the last message be answered again."""
        for _ in self.chat.regenerate():
            pass

    def undo(self) -> None:
        """Take back one turn or some."""
        self.chat.undo(self.draw.randint(1, 3))

    def fork(self) -> None:
        """Go on in a copy."""
        self.workspace.fork()

    def load(self) -> None:
        """Go on with one of the conversations that are saved; delete the oldest, so that they stay few."""
        names = self.workspace.store.names()
        for name in names[10:]:
            (self.workspace.store.folder / f"{name}.json").unlink()
        if names:
            self.workspace.load(self.draw.choice(names[:10]))

    def clear(self) -> None:
        """Begin a new conversation."""
        self.workspace.leave_file()
        self.chat.clear()

    def resize(self) -> None:
        """Give the context another size."""
        change_setting(self.chat, "context", str(self.draw.choice(CONTEXTS)))

    def overflow(self) -> None:
        """Let something else happen when the context is full."""
        self.chat.overflow = self.draw.choice(POLICIES)

    def switch(self) -> None:
        """Let another model go on."""
        self.workspace.change_model(self.draw.choice(list(self.models)))

    def _text(self) -> str:
        # Now and then one that needs several chunks, or does not fit at all.
        length = self.draw.choice((1, 3, 5, 8, 13, 40, 300))
        return " ".join(self.draw.choice(WORDS) for _ in range(length))


class ShiftedEngines:
    """Remembers which models' caches were shifted since they were last emptied."""

    def __init__(self, models: dict[str, Model]) -> None:
        self.names: set[str] = set()
        for name, model in models.items():
            model.sequence.drop = self._noting(name, model.sequence.drop)  # type: ignore[method-assign]

    def _noting(self, name: str, drop: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def note(start: int, stop: int) -> None:
            self.names.add(name)
            drop(start, stop)

        return note


def check_logits(name: str, model: Model) -> None:
    """Compare what follows from a model's cache with a fresh run of the same tokens, bit by bit; leaves the latter.

    Raises
    ------
    AssertionError
        If they differ.
    """
    sequence = model.sequence
    ids = list(sequence.ids)
    if not ids:
        return
    sequence.rewind(len(ids) - 1)
    warm = sequence.step(ids[-1:], len(ids))[-1]
    sequence.rewind(0)
    for start in range(0, len(ids), sequence.chunk_size):
        fresh = sequence.step(ids[start : start + sequence.chunk_size], len(ids))[-1]
    differing = int(np.count_nonzero(warm.view(np.uint32) != fresh.view(np.uint32)))
    assert not differing, f"{name}: {differing} of {len(warm)} logits after {len(ids)} tokens differ from a fresh run"


def resident_bytes() -> int:
    """Return the memory that the process has of its own; mapped weights are not counted."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def counts() -> tuple[int, int, int]:
    """Return bytes of memory, open files and threads."""
    gc.collect()
    # The C library keeps freed memory: how much depends on the order of requests, not on what is in use.
    ctypes.CDLL(None).malloc_trim(0)
    # Threads of caches that are gone end a moment later.
    time.sleep(ENDING_SECONDS)
    return resident_bytes(), len(os.listdir("/proc/self/fd")), threading.active_count()


def open_models(names: list[str]) -> dict[str, Model]:
    """Load the models that are named; the demo model twice if none is."""
    if names:
        return {name: open_model(locate(name)) for name in names}
    folder = locate(None)
    return {kv: open_model(folder, kv) for kv in ("f16", "int8")}


def open_model(folder: Path, kv: str | None = None) -> Model:
    """Load a model whose cache has room for the largest context and nothing more: what is kept for later must go."""
    opened = open_model_folder(folder)
    kv = kv or default_kv(opened.config, opened.quantization)
    memory = max(CONTEXTS) * bytes_per_position(opened.config, kv)
    return load_folder(folder, context=CONTEXTS[0], kv=kv, cache_memory=memory)


def use_small_pages() -> None:
    """Let Linux back this process's memory by pages of 4 KiB: larger ones count as used when a part of them is."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def main() -> int:
    """Converse for the given time; return the exit code."""
    use_small_pages()
    arguments = trial_arguments(__doc__, "seconds", 3600.0, float)
    with tempfile.TemporaryDirectory() as folder:
        return converse(Soak(open_models(arguments.model), Path(folder), arguments.seed), arguments.seconds)


def warm_up(model: Model) -> None:
    """Start the threads, fill the cache and shift it: what is used for the first time later would look like a leak."""
    model.generate(model.encode("Hello"), max_tokens=2)
    sequence, most = model.sequence, max(CONTEXTS)
    size = sequence.context_size
    sequence.resize(most)
    ids = (model.encode("Hello") * most)[:most]
    sequence.rewind(0)
    for start in range(0, most, sequence.chunk_size):
        sequence.step(ids[start : start + sequence.chunk_size], most)
    sequence.drop(1, 2)
    sequence.rewind(0)
    sequence.resize(size)


def converse(soak: Soak, seconds: float) -> int:
    """Do one thing after the other for some time, and print what became of it; return the exit code."""
    began = time.monotonic()
    for model in soak.models.values():
        warm_up(model)
    settled, settled_steps, compared, shifted = None, 0, 0, ShiftedEngines(soak.models)
    while (passed := time.monotonic() - began) < seconds or soak.done.total() < 2 * SETTLING_STEPS:
        for _ in range(STEPS_BETWEEN_CHECKS):
            soak.step()
        for name, model in soak.models.items():
            if name in shifted.names:
                model.sequence.rewind(0)
            else:
                check_logits(name, model)
                compared += 1
        shifted.names.clear()
        if settled is None and passed > seconds / 10 and soak.done.total() >= SETTLING_STEPS:
            settled, settled_steps = counts(), soak.done.total()
    ended = counts()
    settled = settled or ended
    print(", ".join(f"{count} {name}" for name, count in sorted(soak.done.items())))
    seconds = time.monotonic() - began
    print(f"{soak.done.total()} steps in {seconds:.0f} s, logits equal to those of a fresh run {compared} times")
    for name, before, after in zip(("MiB of memory", "open files", "threads"), settled, ended, strict=True):
        unit = 1 << 20 if name.startswith("MiB") else 1
        print(f"{name}: {before / unit:.0f} after {settled_steps} steps, {after / unit:.0f} at the end")
    grew = ended[0] - settled[0] > GROWTH_BYTES or ended[1:] > settled[1:]
    if grew:
        print("something grew")
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
