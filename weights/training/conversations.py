"""Whole conversations: skills mixed, with things to remember from turn to turn."""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from . import counting, facts, stories, talk, usage
from .memory import KINDS, Memory
from .phrasing import Turn, each

Message = dict[str, str]
Skill = Callable[[Random], list[Turn]]

# By how much there is to learn: a story is long, but most of a story is learned from any other.
SKILLS: dict[Skill, float] = {
    facts.capitals: 18,
    facts.words: 13,
    facts.nature: 11,
    counting.order: 19,
    counting.sums: 19,
    usage.turns: 20,
    talk.itself: 9,
    talk.small_talk: 8,
    talk.unknown: 10,
    talk.jokes: 4,
    stories.turns: 8,
}
_SYSTEM = each("""You are a helpful assistant. / Answer briefly. / You are tinychat's demo model. / Be kind and brief. /
    You are a friendly helper. Keep your answers short.""")
_SYSTEM_SHARE = 0.06
_REMEMBERING_SHARE = 0.5


def conversation(seed: int, index: int) -> list[Message]:
    """Return conversation `index` of the corpus of `seed`: messages, the same ones on every machine."""
    rng = Random(f"{seed}/{index}")
    messages = []
    if rng.random() < _SYSTEM_SHARE:
        messages.append({"role": "system", "content": rng.choice(_SYSTEM)})
    plan = _remembering if rng.random() < _REMEMBERING_SHARE else _asking
    for user, assistant in plan(rng):
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return messages


def corpus(seed: int) -> Iterator[list[Message]]:
    """Yield the conversations of a seed, without end."""
    return (conversation(seed, index) for index in count())


def _skill(rng: Random) -> list[Turn]:
    return rng.choices(list(SKILLS), list(SKILLS.values()))[0](rng)


def _asking(rng: Random) -> Iterator[Turn]:
    """Yield a conversation about this and that."""
    if rng.random() < 0.15:
        yield talk.hello(rng)
    turns = rng.choice((1, 1, 1, 2, 2, 3, 4, 5)) if rng.random() < 0.97 else rng.randint(6, 24)
    for _ in range(turns):
        yield from _skill(rng)
    if rng.random() < 0.08:
        yield talk.goodbye(rng, None)


def _remembering(rng: Random) -> Iterator[Turn]:
    """Yield a conversation in which the user tells things, talks of others, and asks for them."""
    memory = Memory(rng)
    if rng.random() < 0.15:
        yield talk.hello(rng)
    steps = rng.randint(2, 8) if rng.random() < 0.96 else rng.randint(9, 24)
    for step in range(steps):
        roll = rng.random()
        if roll < 0.34 or (step == 0 and roll < 0.6):
            yield _told(rng, memory)
        elif roll < 0.68:
            yield memory.ask_all() if roll < 0.37 else memory.ask(_asked_kind(rng, memory))
        elif memory.name and roll < 0.69:
            yield from stories.turns(rng, memory.name)
        else:
            yield from _skill(rng)
    for kind in rng.sample(list(KINDS), len(KINDS)):
        if kind in memory.known() and rng.random() < 0.6:
            yield memory.ask(kind)
    if rng.random() < 0.15:
        yield talk.goodbye(rng, memory.name)


def _told(rng: Random, memory: Memory) -> Turn:
    if rng.random() < 0.15:
        first, second = rng.sample(list(KINDS), 2)
        return memory.tell_two(first, second)
    known = memory.known()
    if known and rng.random() < 0.12:
        return memory.tell(rng.choice(known))
    return memory.tell(rng.choice(("name", *KINDS)))


def _asked_kind(rng: Random, memory: Memory) -> str:
    """Return what to ask for: mostly something told."""
    known = memory.known()
    return rng.choice(known) if known and rng.random() < 0.75 else rng.choice(list(KINDS))
