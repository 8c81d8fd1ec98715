"""Names, cities, animals and colours that fill the phrases, and names that nobody has yet."""

from random import Random

from .phrasing import each

NAMES = """Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Kate Leo Maria Noah Olga Paul Rosa Sam Tina
    Victor Wendy Yusuf Zoe Adam Bella Carlos Diana Erik Fatima George Hannah Ivan Julia Karl Laura Mark Nina Oscar Petra
    Quentin Rita Simon Tom Ursula Vera Walter Xenia Yara Aisha Boris Chloe Daniel Elena Frank Grace Henry Irene James
    Kim Linda Max Nora Oliver Pia Ravi Sarah Theo Uma Vincent Will Yuki Zara Alex Bruno Cleo Dora Eva Finn Gina Hans
    Inga Jack Kira Lukas Mia Nils Otto Paula Robin Sofia Tara Ugo Viola Wanda Yves Amir Betty Chen Dmitri Esther Fiona
    Goran Helen Ismail Jana Kenji Lena Mohamed Nadia Omar Priya Rachel Stefan Thomas Valentina Xavier Peter John Mary
    Lucy Martin Alice Bob Charlie Dave Eve Julian Michael Robert Susan Emily Lisa Jakob Ella Liam Ava Ethan Isabel Mateo
    Ines""".split()
CITIES = each("""Lisbon / Porto / Madrid / Barcelona / Paris / Lyon / Berlin / Hamburg / Munich / Vienna /
    Zurich / Geneva / Rome / Milan / Naples / Athens / Oslo / Bergen / Stockholm / Helsinki / Copenhagen / Warsaw /
    Krakow / Prague / Budapest / London / Leeds / Bristol / Dublin / Cork / Boston / Chicago / Seattle / Denver /
    Austin / New York / San Francisco / Toronto / Montreal / Vancouver / Mexico City / Lima / Bogota / Santiago /
    Cairo / Lagos / Nairobi / Cape Town / Accra / Tunis / Istanbul / Ankara / Delhi / Mumbai / Chennai / Tokyo / Osaka /
    Kyoto / Seoul / Busan / Beijing / Shanghai / Hanoi / Bangkok / Manila / Jakarta / Sydney / Melbourne / Perth /
    Auckland / Ghent / Antwerp / Utrecht / Rotterdam / Malmo / Turin / Seville / Glasgow / Cardiff / Dresden / Cologne /
    Salzburg / Riga / Vilnius / Tallinn / Kyiv / Sofia / Split""")
ANIMALS = """cat dog horse fox owl rabbit wolf bear tiger lion elephant penguin dolphin otter hedgehog
    squirrel turtle frog parrot eagle whale seal deer goat sheep cow duck goose swan mouse hamster koala panda kangaroo
    giraffe zebra camel donkey badger beaver bat crow raven sparrow lizard snake octopus shark bee butterfly""".split()
COLOURS = """red blue green yellow orange purple pink brown black white grey turquoise violet gold silver
    crimson teal beige navy lilac maroon olive indigo scarlet""".split()
_STARTS = "b br d dr f fl g gr h j k kl l m n p r s st t tr v w z sh ch th".split()
_VOWELS = "a e i o u ai ea ia oo".split()
_ENDS = """n l r s m x d k ck ll nn ra la na ko ro ta to mi lin bert dra wick sen ford ville ton ba mar lind mund
    rick ette ine ella vik kov son ley bury by stein ard olf wyn el ian us ius ez""".split()
_NICKNAMES = "Captain Boss Champ Doc Chief Buddy Sunny Professor Skipper Ace Lucky Red Smiley Tiger Sir Madam".split()


def new_word(rng: Random) -> str:
    """Return a word that does not exist, with a capital: replies must copy what was said, not what was learned."""
    middle = rng.choice(_STARTS) + rng.choice(_VOWELS) if rng.random() < 0.5 else ""
    return (rng.choice(_STARTS) + rng.choice(_VOWELS) + middle + rng.choice(_ENDS)).capitalize()


def a_name(rng: Random) -> str:
    """Return a person's name, every other time one that nobody has."""
    roll = rng.random()
    if roll < 0.04:
        return rng.choice(_NICKNAMES)
    return new_word(rng) if roll < 0.5 else rng.choice(NAMES)


def a_city(rng: Random) -> str:
    """Return a city, now and then one that is on no map."""
    return new_word(rng) if rng.random() < 0.4 else rng.choice(CITIES)
