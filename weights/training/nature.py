"""What animals say, and what colour things are."""

from random import Random

from .phrasing import Turn, as_typed, one_of, upper_first, with_article

SOUNDS = {
    "cat": ("meows", "meow"), "dog": ("barks", "woof"), "cow": ("moos", "moo"), "sheep": ("bleats", "baa"),
    "duck": ("quacks", "quack"), "pig": ("grunts", "oink"), "horse": ("neighs", "neigh"), "hen": ("clucks", "cluck"),
    "rooster": ("crows", "cock-a-doodle-doo"), "bee": ("buzzes", "buzz"), "frog": ("croaks", "croak"),
    "lion": ("roars", "roar"), "tiger": ("growls", "grr"), "wolf": ("howls", "awoo"), "snake": ("hisses", "hiss"),
    "owl": ("hoots", "hoo-hoo"), "mouse": ("squeaks", "squeak"), "donkey": ("brays", "hee-haw"),
    "goat": ("bleats", "meh"), "goose": ("honks", "honk"), "turkey": ("gobbles", "gobble"), "crow": ("caws", "caw"),
    "elephant": ("trumpets", "toot"), "chick": ("peeps", "peep"), "bird": ("sings", "tweet"), "bear": ("growls", "grr"),
    "dove": ("coos", "coo"), "cricket": ("chirps", "chirp"), "cuckoo": ("calls", "cuckoo"), "kitten": ("meows", "meow"),
}  # fmt: skip
SILENT = "giraffe rabbit turtle snail butterfly jellyfish starfish spider ant worm crab squid koala otter".split()

COLOURS = {
    "the sky": "blue", "the sea": "blue", "grass": "green", "snow": "white", "milk": "white", "coal": "black",
    "the night": "black", "a banana": "yellow", "a lemon": "yellow", "the sun": "yellow", "blood": "red",
    "a tomato": "red", "a strawberry": "red", "a cherry": "red", "a carrot": "orange", "an orange": "orange",
    "a pumpkin": "orange", "chocolate": "brown", "wood": "brown", "a bear": "brown", "an elephant": "grey",
    "a mouse": "grey", "a frog": "green", "a leaf": "green", "a cucumber": "green", "broccoli": "green",
    "a flamingo": "pink", "a pig": "pink", "a raven": "black", "a swan": "white", "a polar bear": "white",
    "salt": "white", "sugar": "white", "an aubergine": "purple", "a plum": "purple", "lavender": "purple",
    "a fire engine": "red", "coffee": "brown", "a cloud": "white", "a canary": "yellow", "honey": "golden",
    "a sunflower": "yellow", "spinach": "green", "a raspberry": "red", "a blueberry": "blue", "rust": "brown",
}  # fmt: skip
COLOURLESS = "a car|a house|a shirt|a book|a door|music|the wind|an idea|a bicycle|a hat|love|a balloon".split("|")

_ASK_SOUND = (
    "[What|Which] [sound|noise] does {animal} make?",
    "What does {animal} say?",
    "[What|Which] [sound|noise] do {bare}s make?",
    "How does {animal} sound?",
    "How does {animal} go?",
    "What is the [sound|noise|cry|call] of {animal}?",
    "[Tell me|Do you know] [what|which] [sound|noise] {animal} makes?",
    "What do you hear when {animal} [is near|speaks|talks]?",
    "The [sound|noise] of {animal}?",
)
_SOUND = ("{Animal} {verb}: {sound}!", "{Animal} {verb}: {sound}!", "It {verb}: {sound}!", "{Animal} says {sound}!")
_ASK_COLOUR = (
    "[What|Which] [colour|color] is {thing}?",
    "[What|Which] [colour|color] does {thing} have?",
    "[What is|What's|Tell me|Do you know] the [colour|color] of {thing}?",
    "[Tell me|Do you know] [what|which] [colour|color] {thing} is?",
    "[The colour|The color|Colour|Color] of {thing}?",
    "[What|Which] [colour|color] is {thing} usually?",
    "In [what|which] [colour|color] would you paint {thing}?",
)
_COLOUR = ("{Thing} is {colour}.", "{Thing} is {colour}.", "{Thing} is usually {colour}.")
_FOLLOW = ("[And|What about|How about|And what about] {thing}?", "And {thing}?")
_ANY = ("{Thing} can have any colour.", "I can't say: {thing} has no colour of its own.")
_DUNNO = ("I don't know what sound {animal} makes.", "I don't know: I never learned the sound of {animal}.")


def turns(rng: Random) -> list[Turn]:
    """Return a question about a sound or a colour, or a few in a row."""
    roll = rng.random()
    if roll < 0.06:
        thing = rng.choice(COLOURLESS)
        return [
            (
                as_typed(rng, one_of(rng, _ASK_COLOUR, thing=thing)),
                one_of(rng, _ANY, thing=thing, Thing=upper_first(thing)),
            )
        ]
    if roll < 0.12:
        bare = rng.choice(SILENT)
        animal = with_article(bare)
        return [(as_typed(rng, one_of(rng, _ASK_SOUND, animal=animal, bare=bare)), one_of(rng, _DUNNO, animal=animal))]
    return _sounds(rng) if roll < 0.55 else _colours(rng)


def _sounds(rng: Random) -> list[Turn]:
    result: list[Turn] = []
    while not result or rng.random() < 0.35:
        bare = rng.choice(list(SOUNDS))
        verb, sound = SOUNDS[bare]
        animal = with_article(bare)
        question = one_of(rng, _FOLLOW if result else _ASK_SOUND, thing=animal, animal=animal, bare=bare)
        question = question.replace("sheeps", "sheep").replace("mouses", "mice").replace("gooses", "geese")
        reply = one_of(rng, _SOUND, Animal=upper_first(animal), verb=verb, sound=sound)
        result.append((as_typed(rng, question.replace("wolfs", "wolves")), reply))
    return result


def _colours(rng: Random) -> list[Turn]:
    result: list[Turn] = []
    while not result or rng.random() < 0.35:
        thing = rng.choice(list(COLOURS))
        question = one_of(rng, _FOLLOW if result else _ASK_COLOUR, thing=thing)
        reply = one_of(rng, _COLOUR, Thing=upper_first(thing), colour=COLOURS[thing])
        result.append((as_typed(rng, question), reply))
    return result
