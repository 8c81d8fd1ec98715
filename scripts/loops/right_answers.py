"""Forty tasks whose right answer repeats itself: counting, tables, code, songs with a chorus. All are of our own."""

from collections.abc import Iterator, Sequence
from string import ascii_lowercase

ONES = "one two three four five six seven eight nine ten eleven twelve".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ANIMALS = "cow duck dog sheep horse cat goat frog".split()
SOUNDS = "moo quack woof baa neigh meow maa croak".split()
CITIES = "Paris Rome Oslo Cairo Lima Tokyo Delhi Quito Bern Riga Sofia Minsk".split()


def right_answers() -> Iterator[tuple[str, str]]:
    """Yield each task with an answer as a careful person would give it."""
    yield from _counting()
    yield from _tables()
    yield from _code()
    yield from _songs()


def _counting() -> Iterator[tuple[str, str]]:
    yield "Count to 100.", ", ".join(map(str, range(1, 101)))
    yield "Count from 1 to 150, one number on each line.", "\n".join(map(str, range(1, 151)))
    yield "Count down from 100.", " ".join(map(str, range(100, -1, -1)))
    yield "Write the even numbers up to 200.", ", ".join(map(str, range(2, 201, 2)))
    yield "Count to 80 in words of one line each.", "\n".join(f"Number {n}" for n in range(1, 81))
    yield (
        "Write the multiplication table of seven up to 40.",
        "\n".join(f"{n} times 7 is {7 * n}." for n in range(1, 41)),
    )
    yield (
        "Write all products of the numbers 1 to 10.",
        "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 11) for b in range(1, 11)),
    )
    yield "Write the squares of the numbers 1 to 60.", "\n".join(f"{n}^2 = {n * n}" for n in range(1, 61))
    yield "Add one to each number from 1 to 60.", "\n".join(f"{n} + 1 = {n + 1}" for n in range(1, 61))
    yield "Write 0 and 1 in turns, 60 times.", "".join(f"{n % 2} " for n in range(60))


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _tables() -> Iterator[tuple[str, str]]:
    hours = [f"{hour}:00" for hour in range(8, 18)]
    yield "Make an empty timetable for the week.", _table(["Time", *DAYS], [[hour, *[""] * 7] for hour in hours])
    yield (
        "Make a table of who works when.",
        _table(["Day", "Morning", "Noon", "Evening"], [[day, "free", "work", "free"] for day in DAYS]),
    )
    yield (
        "Make a multiplication table up to 10.",
        _table(["x", *map(str, range(1, 11))], [[a, *[a * b for b in range(1, 11)]] for a in range(1, 11)]),
    )
    yield (
        "Make a table of 12 cities and whether they are capitals.",
        _table(["City", "Capital", "Visited"], [[city, "yes", "no"] for city in CITIES]),
    )
    yield (
        "Make a truth table of three inputs with and, or, and both inverted.",
        _table(
            ["a", "b", "c", "and", "or", "nand", "nor"],
            [
                [a, b, c, a & b & c, a | b | c, 1 - (a & b & c), 1 - (a | b | c)]
                for a in (0, 1)
                for b in (0, 1)
                for c in (0, 1)
            ],
        ),
    )
    yield "Make a chess board of dots.", "\n".join([". # . # . # . #", "# . # . # . # ."] * 4)
    yield (
        "Make a table of 30 days with the weather still open.",
        _table(["Day", "Weather", "Wind"], [[f"{n} June", "unknown", "unknown"] for n in range(1, 31)]),
    )
    yield (
        "Write the identity matrix of size 12.",
        "\n".join(" ".join("1" if row == column else "0" for column in range(12)) for row in range(12)),
    )
    yield (
        "Write a CSV file with 20 users, all active.",
        "id,name,active,role\n" + "\n".join(f"{n},user{n},true,member" for n in range(1, 21)),
    )
    yield (
        "Make a table of the letters and their codes.",
        _table(["Letter", "Code"], [[letter, ord(letter)] for letter in ascii_lowercase]),
    )


def _block(language: str, code: str) -> str:
    return f"Here it is:\n\n```{language}\n{code}\n```\n"


def _code() -> Iterator[tuple[str, str]]:
    yield "Write a Python list of 60 zeros.", _block("python", f"zeros = [{', '.join(['0'] * 60)}]")
    yield (
        "Write a 6 x 8 grid of zeros in C.",
        _block("c", "int grid[6][8] = {\n" + "\n".join(["    {0, 0, 0, 0, 0, 0, 0, 0},"] * 6) + "\n};"),
    )
    yield (
        "Write a class with twelve properties in Java.",
        _block(
            "java",
            "public class City {\n"
            + "\n".join(f"    private String {city.lower()};" for city in CITIES)
            + "\n\n"
            + "\n\n".join(
                f"    public String get{city}() {{\n        return this.{city.lower()};\n    }}" for city in CITIES
            )
            + "\n}",
        ),
    )
    yield (
        "Write ten tests of an adding function.",
        _block(
            "python", "\n\n\n".join(f"def test_add_{n}():\n    assert add({n}, 1) == {n + 1}" for n in range(1, 11))
        ),
    )
    yield (
        "Write a switch statement over the days.",
        _block(
            "javascript",
            "switch (day) {\n"
            + "\n".join(f'    case {n}:\n        name = "{day}";\n        break;' for n, day in enumerate(DAYS))
            + "\n}",
        ),
    )
    yield (
        "Write JSON with 15 users.",
        _block(
            "json",
            "[\n"
            + ",\n".join(
                f'  {{\n    "id": {n},\n    "name": "user{n}",\n    "active": true,\n    "tags": []\n  }}'
                for n in range(1, 16)
            )
            + "\n]",
        ),
    )
    yield (
        "Write SQL that inserts 15 rows.",
        _block(
            "sql",
            "\n".join(f"INSERT INTO users (id, name, active) VALUES ({n}, 'user{n}', TRUE);" for n in range(1, 16)),
        ),
    )
    yield (
        "Write an HTML list of 12 links.",
        _block(
            "html",
            "<ul>\n"
            + "\n".join(f'  <li><a href="/{city.lower()}.html">{city}</a></li>' for city in CITIES)
            + "\n</ul>",
        ),
    )
    loop = "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result"
    yield (
        "Write a function that adds numbers, then once more with types.",
        (
            _block("python", f"{loop}\n\n\nprint(total([1, 2, 3]))")
            + "With types it is:\n\n"
            + _block("python", loop.replace("(values)", "(values: list[int]) -> int") + "\n\n\nprint(total([1, 2, 3]))")
        ),
    )
    yield (
        "Write CSS for five buttons.",
        _block(
            "css",
            "\n\n".join(
                f".button-{name} {{\n    padding: 4px 8px;\n    border: 1px solid black;\n    color: white;\n"
                f"    background: {name};\n}}"
                for name in ("red", "green", "blue", "black", "brown")
            ),
        ),
    )


def _songs() -> Iterator[tuple[str, str]]:
    chorus = (
        "Row on, row on, the river is wide,\nrow on, row on, to the other side,\n"
        "the wind may blow and the night may fall,\nbut the river, the river will carry us all.\n"
    )
    verses = (
        "The morning came with a silver light,\nthe gulls were calling, the sails were white,\n"
        "my father said as he pulled the oar:\nthere is a town on the farther shore.\n",
        "At noon we passed by the miller's gate,\nhe waved his hat and he called us late,\n"
        "we had no bread and we had no wine,\nbut who wants more when the sun will shine?\n",
        "The evening came and the stars were few,\nthe boat was old but our hearts were new,\n"
        "I saw the lamps of the little town,\nand that was where we laid anchor down.\n",
    )
    yield "Write a song with a chorus.", "\n".join(f"{verse}\n{chorus}" for verse in verses)
    yield (
        "Write a song whose chorus comes twice each time.",
        "\n".join(f"{verse}\n{chorus}\n{chorus}" for verse in verses),
    )
    short = "La la la, come along, la la la, sing this song!\n"
    yield "Write a song with a one-line chorus.", "\n".join(verse + short * 3 for verse in verses)
    yield (
        "Write a song that counts bottles down from 12.",
        "\n\n".join(
            f"{n} green bottles standing on the wall,\n{n} green bottles standing on the wall,\n"
            f"and if one green bottle should fall tonight,\nthere will be {n - 1} green bottles on the wall."
            for n in range(12, 0, -1)
        ),
    )
    farm = "\n\n".join(
        f"My uncle has a little farm, hey ho, hey ho,\nand on his farm he has a {animal}, hey ho, hey ho,\n"
        f"with a {sound} {sound} here and a {sound} {sound} there,\n"
        f"here a {sound}, there a {sound}, all day long {sound} {sound},\n"
        "my uncle has a little farm, hey ho, hey ho."
        for animal, sound in zip(ANIMALS, SOUNDS)
    )
    yield "Write a song about the animals of a farm.", farm
    gifts = [f"{count} {animal}s" for count, animal in zip(ONES[1:], [*ANIMALS, "hen", "fox", "owl"])]
    yield (
        "Write a song in which each verse adds a gift.",
        "\n\n".join(
            f"On the {ORDINALS[n]} day of winter my friend gave to me\n"
            + "".join(f"{gift},\n" for gift in reversed(gifts[:n]))
            + ("and " if n else "")
            + "a lamp in a window to see."
            for n in range(12)
        ),
    )
    yield (
        "Write a song for clapping.",
        "\n".join(
            f"Clap your {part}, clap your {part}, one two three,\nclap your {part}, clap your {part}, come with me!"
            for part in ("hands", "knees", "feet", "shoulders", "elbows", "fingers")
        ),
    )
    yield (
        "Write a prayer with a response.",
        "\n".join(
            f"For {what} that we are given,\nwe are thankful, hear our song."
            for what in "bread,water,light,rain,friends,children,music,silence,sleep,morning".split(",")
        ),
    )
    yield (
        "Write a poem of which every line begins alike.",
        "\n".join(
            f"I remember the {what} of my father's house."
            for what in "garden,kitchen,stairs,cellar,window,attic,door,clock,fire,piano,silence,smell".split(",")
        ),
    )
    yield (
        "Write a round in three voices.",
        "\n\n".join(
            f"Voice {n}:\nWake up now, wake up now,\nthe bells are ringing, the bells are ringing,\n"
            "ding dong ding, ding dong ding."
            for n in (1, 2, 3)
        ),
    )
