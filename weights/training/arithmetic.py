"""Adding and subtracting within 20, in figures and in words."""

from random import Random

from .names import a_name
from .phrasing import Turn, as_typed, one_of

WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty""".split()

_ASK = (
    "[What is|What's|How much is|Calculate|Tell me|Work out|Can you calculate|Do you know|Compute] {a} {sign} {b}?",
    "{a} {sign} {b} = ?",
    "{a} {sign} {b}?",
    "{a} {sign} {b} =",
    "How much is {a} {sign} {b}[| in all]?",
    "What do you get [for|with|if you calculate] {a} {sign} {b}?",
    "What does {a} {sign} {b} [make|give|equal]?",
    "{a} {sign} {b} [makes|gives|is][| what| how much]?",
    "[Solve|The result of|I need|Answer this:] {a} {sign} {b}.",
    "[What|Which] number [is|do I get from] {a} {sign} {b}?",
    "What [will|would] {a} {sign} {b} [make|give|be]?",
)
_ADD = (
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "What do {a} and {b} make[ together|]?",
    "If you add {b} to {a}, what do you get?",
    "How much is {a} and {b}?",
    "[Put|Count|Bring] {a} and {b} together.",
    "The sum of {a} and {b}[| is]?",
)
_TAKE = (
    "Subtract {b} from {a}.",
    "Take {b} [away |]from {a}.",
    "What is left if you take {b} from {a}?",
    "What is the difference between {a} and {b}?",
    "{a} take away {b}?",
    "[How much is|What is] {a} less {b}?",
    "[Remove|Deduct] {b} from {a}.",
    "The difference between {a} and {b}[| is]?",
)
_GAINED = (
    "{name} has {a} {things} and [gets|buys|finds|picks] {b} more. How many {things} does {name} have [now|in all|altogether]?",
    "There are {a} {things} [on the table|in the box|in a basket]. I add {b}[ more|]. How many are there?",
    "[I|{name}] [found|owned|had|collected] {a} {things} and [got|bought|found] {b} more. How many [{things} |][is that|does that make|are there][ in all|]?",
    "{a} {things} are [here|there|on the shelf] and {b} [come|are put] [to them|there]. How many[ {things}|] are there[ now|]?",
    "I have {a} {things}, {name} has {b}. How many {things} do we have together?",
)
_LOST = (
    "{name} has {a} {things} and [loses|eats|gives away|sells] {b}. How many [{things} |]are left?",
    "There are {a} {things} [on the table|in the box|in a basket]. {name} takes {b}. How many are left?",
    "[I|{name}] had {a} {things}[, but|and] {b} [were lost|were sold|fell down|broke|are gone]. How many[ {things}|] [remain|are left|stay]?",
    "Of {a} {things}, {b} [are gone|were eaten|were taken]. How many[ {things}|] remain?",
    "I had {a} {things} and [gave|sold] {b} to {name}. How many do I have [left|now]?",
)
_THINGS = (
    "apples pears books marbles coins eggs cookies balls stones pencils nuts cards cakes plums stamps shells".split()
)
_FOLLOW = ("And {a} {sign} {b}?", "[What about|How about] {a} {sign} {b}?", "{a} {sign} {b}?")
_TOO_HARD = (
    "I can't work that out: I only learned to add and subtract up to 20.",
    "That is too hard for me. I only learned to add and subtract up to 20.",
)


def turns(rng: Random) -> list[Turn]:
    """Return a sum or a difference, or a few in a row."""
    roll = rng.random()
    if roll < 0.12:
        return [_too_hard(rng)]
    if roll < 0.27:
        return [_told(rng)]
    result: list[Turn] = []
    while not result or rng.random() < 0.4:
        result.append(_figures(rng, bool(result)))
    return result


def _operands(rng: Random) -> tuple[bool, int, int, int]:
    """Return whether to add, both operands and the result, all within 0..20."""
    total = rng.randint(0, 20)
    part = rng.randint(0, total)
    return (True, part, total - part, total) if rng.random() < 0.5 else (False, total, part, total - part)


def _figures(rng: Random, follows: bool) -> Turn:
    adds, a, b, result = _operands(rng)
    words = rng.random() < 0.2
    sign = rng.choice(("+", "+", "plus", "plus", "and") if adds else ("-", "-", "minus", "minus"))
    own = _FOLLOW if follows else _ASK if rng.random() < 0.65 else _ADD if adds else _TAKE
    as_word = WORDS.__getitem__ if words else str
    question = one_of(rng, own, a=as_word(a), b=as_word(b), sign=sign)
    reply = f"{a} {'plus' if adds else 'minus'} {b} is {result}."
    if sign in "+-" and rng.random() < 0.5:
        reply = f"{a} {sign} {b} = {result}."
    if sign in "+-" and rng.random() < 0.15:
        question = question.replace(f" {sign} ", sign)
    return as_typed(rng, question), reply


def _told(rng: Random) -> Turn:
    adds, a, b, result = _operands(rng)
    things = rng.choice(_THINGS)
    question = one_of(rng, _GAINED if adds else _LOST, a=a, b=b, things=things, name=a_name(rng))
    return as_typed(
        rng, question
    ), f"{a} {'+' if adds else '-'} {b} = {result}, so {result} {things if result != 1 else things[:-1]}."


def _too_hard(rng: Random) -> Turn:
    sign = rng.choice(("+", "-", "plus", "minus", "times", "*", "x", "divided by", "/", "times"))
    small = sign in ("times", "*", "x", "divided by", "/")
    a = rng.randint(2, 20) if small and rng.random() < 0.5 else rng.randint(31, 9999)
    question = one_of(rng, _ASK, a=a, b=rng.randint(2, 20) if small else rng.randint(31, 999), sign=sign)
    return as_typed(rng, question), rng.choice(_TOO_HARD)
