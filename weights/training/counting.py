"""Sums and differences within 20, counting, and days and months in order."""

from random import Random

from .names import a_name
from .phrasing import Turn, as_typed, each, one_of

_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty""".split()
_ASK = each("""[What is|What's|How much is|Calculate|Tell me|Work out|Can you calculate|Do you know|Compute] {a} {sign}
    {b}? / {a} {sign} {b} = ? / {a} {sign} {b}? / {a} {sign} {b} = / How much is {a} {sign} {b}[| in all]? /
    What do you get [for|with|if you calculate] {a} {sign} {b}? / What does {a} {sign} {b} [make|give|equal]? /
    {a} {sign} {b} [makes|gives|is][| what| how much]? / [Solve|The result of|I need|Answer this:] {a} {sign} {b}. /
    [What|Which] number [is|do I get from] {a} {sign} {b}? / What [will|would] {a} {sign} {b} [make|give|be]?""")
_ADD = each("""Add {a} and {b}. / What is the sum of {a} and {b}? / What do {a} and {b} make[ together|]? /
    If you add {b} to {a}, what do you get? / How much is {a} and {b}? / [Put|Count|Bring] {a} and {b} together. /
    The sum of {a} and {b}[| is]?""")
_TAKE = each("""Subtract {b} from {a}. / Take {b} [away |]from {a}. / What is left if you take {b} from {a}? /
    What is the difference between {a} and {b}? / {a} take away {b}? / [How much is|What is] {a} less {b}? /
    [Remove|Deduct] {b} from {a}. / The difference between {a} and {b}[| is]?""")
_GAINED = each("""{name} has {a} {things} and [gets|buys|finds|picks] {b} more. How many {things} does {name} have
    [now|in all|altogether]? / There are {a} {things} [on the table|in the box|in a basket]. I add {b}[ more|]. How many
    are there? / [I|{name}] [found|owned|had|collected] {a} {things} and [got|bought|found] {b} more. How many [{things}
    |][is that|does that make|are there][ in all|]? / {a} {things} are [here|there|on the shelf] and {b} [come|are put]
    [to them|there]. How many[ {things}|] are there[ now|]? / I have {a} {things}, {name} has {b}. How many {things} do
    we have together?""")
_LOST = each("""{name} has {a} {things} and [loses|eats|gives away|sells] {b}. How many [{things} |]are left? /
    There are {a} {things} [on the table|in the box|in a basket]. {name} takes {b}. How many are left? /
    [I|{name}] had {a} {things}[, but|and] {b} [were lost|were sold|fell down|broke|are gone]. How many[ {things}|]
    [remain|are left|stay]? / Of {a} {things}, {b} [are gone|were eaten|were taken]. How many[ {things}|] remain? /
    I had {a} {things} and [gave|sold] {b} to {name}. How many do I have [left|now]?""")
_THINGS = (
    "apples pears books marbles coins eggs cookies balls stones pencils nuts cards cakes plums stamps shells".split()
)
_FOLLOW = each("And {a} {sign} {b}? / [What about|How about] {a} {sign} {b}? / {a} {sign} {b}?")
_TOO_HARD = each("""I can't work that out: I only learned to add and subtract up to 20. /
    That is too hard for me. I only learned to add and subtract up to 20.""")

_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_AFTER = each("""[What|Which] [{kind}|{kind}|] [comes|is] [after|right after|directly after] {given}? /
    [What|Which] {kind} follows {given}? / {given} is followed by [what|which] {kind}? / [What is|What's|Tell me] the
    {kind} after {given}? / [What is|What's|Tell me] the next {kind} after {given}? / After {given} comes? /
    [It is|Today is|We have] {given}[ now|]: [what|which] {kind} comes next? / [What|Which] {kind} [will come|will be|do
    we have|begins|starts] [after|when] {given}[ is over|]? / {given} is over. [What|Which] {kind} [comes|is|starts]
    now? / After {given} comes [what|which] {kind}?""")
_BEFORE = each("""[What|Which] [{kind}|{kind}|] [comes|is] [before|right before|just before] {given}? /
    [What is|What's|Tell me] the {kind} before {given}? / [What|Which] {kind} precedes {given}? /
    Before {given} comes? / [What|Which] {kind} [was|did we have|lies|stands|ends] [right |just |]before {given}[
    begins| starts|]? / {given} [has begun|begins|starts]. [What|Which] {kind} was before[ it|]? /
    Before {given} comes [what|which] {kind}?""")
_TODAY = each("""If today is {given}, what [day is|is] tomorrow? / Today is {given}. [What|Which] day is [it
    |]tomorrow? / It is {given} today. What day will it be tomorrow?""")
_YESTERDAY = each("""If today is {given}, what [day was|was] yesterday? / Today is {given}. [What|Which] day was [it
    |]yesterday?""")
_NTH = each("""[What|Which] [is|was] the {nth} {kind} of the {whole}? / [What|Which] {kind} [is|comes] {nth}[ in the
    {whole}|]? / [Tell me|Name] the {nth} {kind} of the {whole}.""")
_ALL = each("""[What are|Tell me|Say|List|Name|Can you list|Recite] [all |]the {kind}s of the {whole}[ in order|]? /
    [Which|What] {kind}s [does a {whole} have|are there in a {whole}|are in a {whole}]? / [List|Name|Say] the [{count}|]
    {kind}s in order. / [Name|List|Write down|I need|Give me] [all|all the|all {count}|the {count}] {kind}s[ of the
    {whole}| of a {whole}|]. / [From first to last|One after the other|One by one], [the|all] {kind}s of the
    {whole}.""")
_HOW_MANY = each("""How many {kind}s [are there in|does] a {whole}[| have]? / How many {kind}s are in a {whole}? /
    How many {kind}s make a {whole}? / How many {kind}s has a {whole}? / [A|One] {whole} has how many {kind}s? /
    [What is|Tell me] the number of {kind}s in [a|one] {whole}[?|] / How many {kind}s [do|can] you count in [a|one]
    {whole}? / How many {kind}s [belong to|fit in|long is] [a|one|the] {whole}?""")
_UP = each("""[Count|Can you count|Please count|Count up] from {low} to {high}. / [Say|Give me|List|Write] the numbers
    from {low} to {high}. / [Count|Count up|Start counting] at {low} and [stop|end] at {high}. /
    Count [up |]to {high}, starting [at|from|with] {low}. / [Which|What] numbers are there from {low} to {high}? /
    From {low} to {high}, [count|please count|can you count][.|!|?] / [Begin|Start] [with|at] {low} and [count|go|count
    up] to {high}[ for me|]. / [Try to count|I would like you to count|You should count|Let me hear you count|Can you
    please count|Show me how you count] [up |]from {low} to {high}[, please|].""")
_UP_TO = each("""[Count|Can you count|Please count|Count up] to {high}. / [Say|Show me] how you count to {high}. /
    How far is it to {high}? Count! / [Try counting|Start counting|I would like you to count|You should count|Let me
    hear you count|Can you please count|Go on and count] [up |]to {high}[, please| for me|]. /
    [All numbers|The numbers|Every number] [up to|until] {high}[, please|].""")
_DOWN = each("""[Count|Can you count|Please count] [down|backwards|back] from {high} to {low}. /
    Count [down|backwards] from {high} and [stop|end] at {low}. / [Say|Give me|Write] the numbers from {high} down to
    {low}. / From {high} [down|back] to {low}, [count|please count|can you count][.|!|?] /
    [Try to count|I would like you to count|You should count|Let me hear you count|Can you please count|Show me how you
    count] [down|backwards|back] from {high} to {low}[, please| for me|].""")
_DOWN_FROM = each("""[Count|Can you count] [down|backwards] from {high}. / [Do|Give me|Make|Start|I need|Let me hear] a
    countdown from {high}. / A countdown[, please|][,|] [that begins at|beginning with|from] {high}. /
    [Try to count|I would like you to count|You should count|Let me hear you count] [down|backwards] from {high}[,
    please|].""")
_NEXT = each("""[What|Which] number [comes|is] after {given}? / What comes after {given}? /
    [What|Which] number follows {given}?""")
_PREVIOUS = each("[What|Which] number [comes|is] before {given}? / What comes [right |just |]before {given}?")


def sums(rng: Random) -> list[Turn]:
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
    as_word = _WORDS.__getitem__ if rng.random() < 0.2 else str
    sign = rng.choice(("+", "+", "plus", "plus", "and") if adds else ("-", "-", "minus", "minus"))
    own = _FOLLOW if follows else _ASK if rng.random() < 0.65 else _ADD if adds else _TAKE
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
    counted = f"{result} {things if result != 1 else things[:-1]}"
    return as_typed(rng, question), f"{a} {'+' if adds else '-'} {b} = {result}, so {counted}."


def _too_hard(rng: Random) -> Turn:
    sign = rng.choice(("+", "-", "plus", "minus", "times", "*", "x", "divided by", "/", "times"))
    small = sign in ("times", "*", "x", "divided by", "/")
    a = rng.randint(2, 20) if small and rng.random() < 0.5 else rng.randint(31, 9999)
    question = one_of(rng, _ASK, a=a, b=rng.randint(2, 20) if small else rng.randint(31, 999), sign=sign)
    return as_typed(rng, question), rng.choice(_TOO_HARD)


def order(rng: Random) -> list[Turn]:
    """Return a question about the calendar, or something to count."""
    question, reply = _counting(rng) if rng.random() < 0.55 else _calendar(rng)
    return [(as_typed(rng, question), reply)]


def _calendar(rng: Random) -> Turn:
    kind, whole, sequence = ("day", "week", _DAYS) if rng.random() < 0.5 else ("month", "year", _MONTHS)
    index = rng.randrange(len(sequence))
    given, after, before = sequence[index], sequence[(index + 1) % len(sequence)], sequence[index - 1]
    count, nth = _WORDS[len(sequence)], _ORDINALS[index]
    fields = {"kind": kind, "whole": whole, "given": given, "nth": nth, "count": count}
    roll = rng.random()
    if kind == "day" and roll < 0.2:
        if rng.random() < 0.6:
            return one_of(rng, _TODAY, **fields), f"Tomorrow is {after}."
        return one_of(rng, _YESTERDAY, **fields), f"Yesterday was {before}."
    if roll < 0.5:
        return one_of(rng, _AFTER, **fields), f"After {given} comes {after}."
    if roll < 0.72:
        return one_of(rng, _BEFORE, **fields), f"Before {given} comes {before}."
    if roll < 0.8:
        nth = "last" if index == len(sequence) - 1 and rng.random() < 0.5 else nth
        return one_of(rng, _NTH, **fields | {"nth": nth}), f"The {nth} {kind} of the {whole} is {given}."
    if roll < 0.9:
        listing = ", ".join(sequence[:-1]) + " and " + sequence[-1]
        return one_of(rng, _ALL, **fields), f"The {kind}s of the {whole} are {listing}."
    return one_of(rng, _HOW_MANY, **fields), f"A {whole} has {count} {kind}s."


def _counting(rng: Random) -> Turn:
    low = rng.choice((1, 1, 1, 0, *range(2, 20)))
    high = min(low + rng.randint(2, 11), 30)
    roll = rng.random()
    if roll < 0.14:
        given = rng.randint(0, 99)
        return one_of(rng, _NEXT, given=given), f"After {given} comes {given + 1}."
    if roll < 0.24:
        given = rng.randint(1, 100)
        return one_of(rng, _PREVIOUS, given=given), f"Before {given} comes {given - 1}."
    if roll < 0.44:
        return one_of(rng, _UP, low=low, high=high), _numbers(range(low, high + 1))
    if roll < 0.62:
        high = rng.randint(3, 20)
        return one_of(rng, _UP_TO, high=high), _numbers(range(1, high + 1))
    if roll < 0.82:
        return one_of(rng, _DOWN, low=low, high=high), _numbers(range(high, low - 1, -1))
    high = rng.randint(3, 15)
    return one_of(rng, _DOWN_FROM, high=high), _numbers(range(high, 0, -1))


def _numbers(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."
