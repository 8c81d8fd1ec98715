"""Opposites and plurals."""

from random import Random

from .phrasing import Turn, as_typed, one_of

_PAIRS = """hot-cold big-small tall-short fast-slow light-dark day-night young-old new-old happy-sad rich-poor hard-soft
    wet-dry full-empty open-closed up-down left-right in-out early-late strong-weak clean-dirty good-bad easy-difficult
    loud-quiet high-low long-short near-far thick-thin wide-narrow sweet-sour true-false alive-dead brave-afraid
    front-back first-last begin-end buy-sell give-take push-pull win-lose love-hate ask-answer always-never black-white
    cheap-expensive deep-shallow heavy-light smooth-rough sharp-blunt warm-cool inside-outside above-below before-after
    yes-no more-less north-south east-west friend-enemy noisy-silent polite-rude safe-dangerous simple-complicated"""


def _both_ways() -> dict[str, str]:
    """Return the opposite of each word; a word that has two keeps the first."""
    opposites: dict[str, str] = {}
    for pair in _PAIRS.split():
        one, other = pair.split("-")
        opposites.setdefault(one, other)
        opposites.setdefault(other, one)
    return opposites


OPPOSITES = _both_ways()

PLURALS = dict(
    pair.split("-")
    for pair in """mouse-mice child-children man-men woman-women foot-feet tooth-teeth goose-geese person-people
    sheep-sheep fish-fish deer-deer leaf-leaves wolf-wolves knife-knives life-lives wife-wives half-halves loaf-loaves
    shelf-shelves thief-thieves city-cities baby-babies story-stories party-parties lady-ladies country-countries
    berry-berries puppy-puppies fly-flies box-boxes fox-foxes bus-buses glass-glasses dish-dishes watch-watches
    church-churches brush-brushes potato-potatoes tomato-tomatoes hero-heroes ox-oxen cat-cats dog-dogs book-books
    house-houses tree-trees car-cars day-days boy-boys key-keys toy-toys apple-apples horse-horses bird-birds
    table-tables chair-chairs flower-flowers friend-friends river-rivers window-windows door-doors ship-ships
    cactus-cacti crisis-crises bench-benches peach-peaches cherry-cherries family-families""".split()
)

UNTAUGHT = """purple table seven pencil lamp mountain piano triangle Tuesday cheese music window spoon garden river
    elephant radio butter paper engine""".split()

_ASK_OPPOSITE = (
    "[What is|What's|Tell me|Do you know|Give me|Say] the opposite of {word}?",
    "[What is|What's] the opposite of the word {word}?",
    'What is the opposite of "{word}"?',
    "Opposite of {word}?",
    "The opposite of {word} is?",
    "[Which|What] word is the opposite of {word}?",
    "[Which|What] word means the opposite of {word}?",
    "{word}: what is the opposite?",
    "If something is not {word}, what is it?",
)
_OPPOSITE = ("The opposite of {word} is {answer}.", "The opposite of {word} is {answer}.", "It is {answer}.")
_ASK_PLURAL = (
    "[What is|What's|Tell me|Do you know|Give me|Say] the plural of {word}?",
    "[What is|What's] the plural of the word {word}?",
    'What is the plural of "{word}"?',
    "Plural of {word}?",
    "The plural of {word} is?",
    "One {word}, two what?",
    "One {word}, [two|three|many] ...?",
    "How do you [write|say|spell] more than one {word}?",
    "What do you call [two|several|many] of them: one {word}, [two|several|many] what?",
    "{word}: what is the plural?",
    "What is the plural form of {word}?",
)
_PLURAL = ("The plural of {word} is {answer}.", "The plural of {word} is {answer}.", "One {word}, two {answer}.")
_FOLLOW = ("[And|What about|How about|And what about] {word}?", "And of {word}?", "And {word}?")
_DUNNO = ("I don't know an opposite of {word}.", "I don't think that {word} has an opposite; at least I learned none.")


def turns(rng: Random) -> list[Turn]:
    """Return a question about an opposite or a plural, or a few in a row."""
    if rng.random() < 0.1:
        word = rng.choice(UNTAUGHT)
        return [(as_typed(rng, one_of(rng, _ASK_OPPOSITE, word=word)), one_of(rng, _DUNNO, word=word))]
    if rng.random() < 0.5:
        return _asked(rng, OPPOSITES, _ASK_OPPOSITE, _OPPOSITE)
    return _asked(rng, PLURALS, _ASK_PLURAL, _PLURAL)


def _asked(rng: Random, facts: dict[str, str], ask: tuple[str, ...], reply: tuple[str, ...]) -> list[Turn]:
    result: list[Turn] = []
    while not result or rng.random() < 0.35:
        word = rng.choice(list(facts))
        question = one_of(rng, _FOLLOW if result else ask, word=word)
        result.append((as_typed(rng, question), one_of(rng, reply, word=word, answer=facts[word])))
    return result
