"""Short stories about given characters and places: a beginning, a problem, help, an end."""

from dataclasses import dataclass
from random import Random

from .names import NAMES, new_word
from .phrasing import Templates, Turn, as_typed, each, phrase, upper_first, with_article
from .plots import PLACES, PLOTS

WOMEN = """Anna Clara Emma Greta Ida Kate Maria Olga Rosa Tina Wendy Zoe Bella Diana Hannah Julia Laura
    Nina Petra Rita Vera Elena Grace Nora Pia Sarah Uma Zara Cleo Dora Eva Gina Mia Paula Sofia Tara Wanda Betty Lena
    Lucy Alice Ella""".split()
MEN = """Ben David Felix Hugo Jonas Leo Noah Paul Sam Victor Adam Carlos Erik George Ivan Karl Mark Oscar
    Simon Tom Walter Boris Daniel Frank Henry James Max Oliver Theo Will Bruno Finn Hans Jack Lukas Nils Otto Omar
    Stefan Peter Bob""".split()
ANIMALS = """fox bear rabbit owl mouse hedgehog squirrel wolf cat dog duck frog badger beaver otter turtle
    deer crow goose lion elephant penguin monkey horse donkey goat pig hen dragon snail""".split()
PEOPLE = """girl boy farmer king queen baker sailor teacher gardener fisherman knight princess wizard robot
    painter shepherd doctor pirate giant witch musician postman astronaut""".split()
_WOMEN_ONLY, _MEN_ONLY = {"girl", "queen", "princess", "witch", "hen"}, {"boy", "king", "fisherman", "postman"}
_THINGS = {
    "thing": each("""red scarf / golden ring / silver key / little drum / blue hat / old map / wooden flute /
        lucky coin / green umbrella / music box / lantern / favourite book / kite / compass"""),
    "food": each("""bread / soup / apple pie / honey / cheese / nuts / berries / pancakes / warm milk / carrots /
        plum cake / porridge"""),
    "skill": each("""swim / whistle / dance / sing / draw / juggle / climb / skate / play the flute / ride a bicycle /
        bake bread / read the stars"""),
    "fear": each("the dark / thunder / deep water / spiders / high places / strangers / the wind / ghosts"),
    "good": each("kind / brave / patient / clever / cheerful / gentle / honest / quick"),
}
_ASK = each("""[{tell}] a [{short}] story about {hero}[| {place}]. / [{tell}] a [{short}] story about {hero} and
    {friend}. / [{tell}] a [{short}] story about {hero} and {friend} {place}. / [{tell}] a [{short}] story [that
    happens|set|that takes place] {place}. / [{tell}] a [{short}] [story|tale|fairy tale|bedtime story]. /
    [A|One] story about {hero}[, please|]. / I want [to hear |]a story [about|with] {hero}[ {place}|]. /
    [Do you know|Have you got] a story about {hero}[ {place}| and {friend}|]? / [Story|Story time]: {hero}[| {place}|
    and {friend}].""")
_TELL = "Tell me|Write|Can you tell me|Make up|Tell|Please tell me|Invent|Can you write|I would like to hear"
_SHORT = "|short|little|nice|funny|new|good"
_AGAIN = each("""[Another one|Another story|One more story|Tell me another story][, please|]. /
    [Now|And now] one about {hero}. / [And|Now] a story about {hero}[ {place}|].""")


@dataclass(frozen=True)
class Character:
    """Someone in a story."""

    kind: str
    name: str
    female: bool

    def fields(self, prefix: str) -> dict[str, str]:
        """Return the fields that the sentences of a story use, each name beginning with `prefix`."""
        they, them, their = ("she", "her", "her") if self.female else ("he", "him", "his")
        values = {"kind": self.kind, "a_kind": with_article(self.kind), "name": self.name, "them": them}
        values |= {"they": they, "They": they.capitalize(), "their": their, "Their": their.capitalize()}
        return {prefix + key: value for key, value in values.items()}


def character(rng: Random, name: str | None = None, but: str = "") -> Character:
    """Return someone new: not of the kind `but`, with the given name or any."""
    kind = rng.choice([kind for kind in (ANIMALS if rng.random() < 0.65 else PEOPLE) if kind != but])
    female = kind in _WOMEN_ONLY or (kind not in _MEN_ONLY and rng.random() < 0.5)
    if name in WOMEN or name in MEN:
        female = name in WOMEN
    if name is None:
        name = new_word(rng) if rng.random() < 0.2 else rng.choice(WOMEN if female else MEN)
    return Character(kind, name, female)


def turns(rng: Random, name: str | None = None) -> list[Turn]:
    """Return a wish for a story and the story, now and then two; with a name, one about the user."""
    if name is not None:
        question = phrase(rng, f"[{_TELL}] a [{_SHORT}] story about me.")
        kind = rng.choice(("girl", "queen", "princess") if name in WOMEN else ("boy", "king", "knight"))
        return [(as_typed(rng, question), tell(rng, Character(kind, name, name in WOMEN)))]
    result: list[Turn] = []
    while not result or rng.random() < 0.12:
        result.append(_one(rng, _AGAIN if result else _ASK))
    return result


def tell(rng: Random, hero: Character, friend: Character | None = None, place: str | None = None) -> str:
    """Return a story: about any friend who helps or is helped, in any of `PLACES`, where these are omitted."""
    friend = friend or character(rng, but=hero.kind)
    while friend.name == hero.name:
        friend = character(rng, but=hero.kind)
    place = place or rng.choice(list(PLACES))
    spots = rng.sample(PLACES[place], 2)
    fields = {"place": place, "Place": upper_first(place), "spot": spots[0], "spot2": spots[1]}
    fields |= hero.fields("h_") | friend.fields("f_")
    fields |= {key: rng.choice(values) for key, values in _THINGS.items()}
    sentences = [phrase(rng, sentence, **fields) for sentence in rng.choice(PLOTS)]
    return " ".join(sentence for sentence in sentences if sentence)


def _one(rng: Random, asks: Templates) -> Turn:
    named = a_named(rng) if rng.random() < 0.35 else None
    hero = character(rng, named)
    friend = character(rng, but=hero.kind)
    place = rng.choice(list(PLACES))
    described = a_kind = with_article(hero.kind)
    if named:
        described = rng.choice((named, f"{a_kind} called {named}", f"{a_kind} named {named}"))
    ask = rng.choice(asks).replace("{tell}", _TELL).replace("{short}", _SHORT)
    asked_place = place.replace(" a ", rng.choice((" a ", " the ")))
    a_friend = with_article(friend.kind)
    question = phrase(rng, ask, hero=described, friend=a_friend, place=asked_place)
    story = tell(rng, hero, friend if a_friend in question else None, place if asked_place in question else None)
    return as_typed(rng, question), story


def a_named(rng: Random) -> str:
    """Return a name that a user might give a character."""
    return new_word(rng) if rng.random() < 0.25 else rng.choice((*WOMEN, *MEN) if rng.random() < 0.7 else NAMES)
