"""Days and months in order, and counting."""

from random import Random

from .phrasing import Turn, as_typed, one_of

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

_AFTER = (
    "[What|Which] [{kind}|{kind}|] [comes|is] [after|right after|directly after] {given}?",
    "[What|Which] {kind} follows {given}?",
    "{given} is followed by [what|which] {kind}?",
    "[What is|What's|Tell me] the {kind} after {given}?",
    "[What is|What's|Tell me] the next {kind} after {given}?",
    "After {given} comes?",
    "[It is|Today is|We have] {given}[ now|]: [what|which] {kind} comes next?",
    "[What|Which] {kind} [will come|will be|do we have|begins|starts] [after|when] {given}[ is over|]?",
    "{given} is over. [What|Which] {kind} [comes|is|starts] now?",
    "After {given} comes [what|which] {kind}?",
)
_BEFORE = (
    "[What|Which] [{kind}|{kind}|] [comes|is] [before|right before|just before] {given}?",
    "[What is|What's|Tell me] the {kind} before {given}?",
    "[What|Which] {kind} precedes {given}?",
    "Before {given} comes?",
    "[What|Which] {kind} [was|did we have|lies|stands|ends] [right |just |]before {given}[ begins| starts|]?",
    "{given} [has begun|begins|starts]. [What|Which] {kind} was before[ it|]?",
    "Before {given} comes [what|which] {kind}?",
)
_TODAY = (
    "If today is {given}, what [day is|is] tomorrow?",
    "Today is {given}. [What|Which] day is [it |]tomorrow?",
    "It is {given} today. What day will it be tomorrow?",
)
_YESTERDAY = (
    "If today is {given}, what [day was|was] yesterday?",
    "Today is {given}. [What|Which] day was [it |]yesterday?",
)
_NTH = (
    "[What|Which] [is|was] the {nth} {kind} of the {whole}?",
    "[What|Which] {kind} [is|comes] {nth}[ in the {whole}|]?",
    "[Tell me|Name] the {nth} {kind} of the {whole}.",
)
_ALL = (
    "[What are|Tell me|Say|List|Name|Can you list|Recite] [all |]the {kind}s of the {whole}[ in order|]?",
    "[Which|What] {kind}s [does a {whole} have|are there in a {whole}|are in a {whole}]?",
    "[List|Name|Say] the [{count}|] {kind}s in order.",
    "[Name|List|Write down|I need|Give me] [all|all the|all {count}|the {count}] {kind}s[ of the {whole}| of a {whole}|].",
    "[From first to last|One after the other|One by one], [the|all] {kind}s of the {whole}.",
)
_HOW_MANY = (
    "How many {kind}s [are there in|does] a {whole}[| have]?",
    "How many {kind}s are in a {whole}?",
    "How many {kind}s make a {whole}?",
    "How many {kind}s has a {whole}?",
    "[A|One] {whole} has how many {kind}s?",
    "[What is|Tell me] the number of {kind}s in [a|one] {whole}[?|]",
    "How many {kind}s [do|can] you count in [a|one] {whole}?",
    "How many {kind}s [belong to|fit in|long is] [a|one|the] {whole}?",
)
_UP = (
    "[Count|Can you count|Please count|Count up] from {low} to {high}.",
    "[Say|Give me|List|Write] the numbers from {low} to {high}.",
    "[Count|Count up|Start counting] at {low} and [stop|end] at {high}.",
    "Count [up |]to {high}, starting [at|from|with] {low}.",
    "[Which|What] numbers are there from {low} to {high}?",
    "From {low} to {high}, [count|please count|can you count][.|!|?]",
    "[Begin|Start] [with|at] {low} and [count|go|count up] to {high}[ for me|].",
    "[Try to count|I would like you to count|You should count|Let me hear you count|Can you please count|Show me how you count] [up |]from {low} to {high}[, please|].",
)
_UP_TO = (
    "[Count|Can you count|Please count|Count up] to {high}.",
    "[Say|Show me] how you count to {high}.",
    "How far is it to {high}? Count!",
    "[Try counting|Start counting|I would like you to count|You should count|Let me hear you count|Can you please count|Go on and count] [up |]to {high}[, please| for me|].",
    "[All numbers|The numbers|Every number] [up to|until] {high}[, please|].",
)
_DOWN = (
    "[Count|Can you count|Please count] [down|backwards|back] from {high} to {low}.",
    "Count [down|backwards] from {high} and [stop|end] at {low}.",
    "[Say|Give me|Write] the numbers from {high} down to {low}.",
    "From {high} [down|back] to {low}, [count|please count|can you count][.|!|?]",
    "[Try to count|I would like you to count|You should count|Let me hear you count|Can you please count|Show me how you count] [down|backwards|back] from {high} to {low}[, please| for me|].",
)
_DOWN_FROM = (
    "[Count|Can you count] [down|backwards] from {high}.",
    "[Do|Give me|Make|Start|I need|Let me hear] a countdown from {high}.",
    "A countdown[, please|][,|] [that begins at|beginning with|from] {high}.",
    "[Try to count|I would like you to count|You should count|Let me hear you count] [down|backwards] from {high}[, please|].",
)
_NEXT = (
    "[What|Which] number [comes|is] after {given}?",
    "What comes after {given}?",
    "[What|Which] number follows {given}?",
)
_PREVIOUS = ("[What|Which] number [comes|is] before {given}?", "What comes [right |just |]before {given}?")


def turns(rng: Random) -> list[Turn]:
    """Return a question about the calendar, or something to count."""
    return [_counting(rng)] if rng.random() < 0.55 else [_calendar(rng)]


def _calendar(rng: Random) -> Turn:
    kind, whole, sequence = ("day", "week", DAYS) if rng.random() < 0.5 else ("month", "year", MONTHS)
    count = {7: "seven", 12: "twelve"}[len(sequence)]
    index = rng.randrange(len(sequence))
    given, after, before = sequence[index], sequence[(index + 1) % len(sequence)], sequence[index - 1]
    fields = {"kind": kind, "whole": whole, "given": given, "nth": ORDINALS[index], "count": count}
    roll = rng.random()
    if kind == "day" and roll < 0.2:
        tomorrow = rng.random() < 0.6
        question = one_of(rng, _TODAY if tomorrow else _YESTERDAY, **fields)
        reply = f"Tomorrow is {after}." if tomorrow else f"Yesterday was {before}."
    elif roll < 0.5:
        question, reply = one_of(rng, _AFTER, **fields), f"After {given} comes {after}."
    elif roll < 0.72:
        question, reply = one_of(rng, _BEFORE, **fields), f"Before {given} comes {before}."
    elif roll < 0.8:
        last = index == len(sequence) - 1 and rng.random() < 0.5
        fields["nth"] = "last" if last else fields["nth"]
        question, reply = one_of(rng, _NTH, **fields), f"The {fields['nth']} {kind} of the {whole} is {given}."
    elif roll < 0.9:
        listing = ", ".join(sequence[:-1]) + " and " + sequence[-1]
        question, reply = one_of(rng, _ALL, **fields), f"The {kind}s of the {whole} are {listing}."
    else:
        question, reply = one_of(rng, _HOW_MANY, **fields), f"A {whole} has {count} {kind}s."
    return as_typed(rng, question), reply


def _counting(rng: Random) -> Turn:
    low = rng.choice((1, 1, 1, 0, *range(2, 20)))
    high = min(low + rng.randint(2, 11), 30)
    roll = rng.random()
    if roll < 0.14:
        given = rng.randint(0, 99)
        return as_typed(rng, one_of(rng, _NEXT, given=given)), f"After {given} comes {given + 1}."
    if roll < 0.24:
        given = rng.randint(1, 100)
        return as_typed(rng, one_of(rng, _PREVIOUS, given=given)), f"Before {given} comes {given - 1}."
    if roll < 0.44:
        return as_typed(rng, one_of(rng, _UP, low=low, high=high)), _numbers(range(low, high + 1))
    if roll < 0.62:
        high = rng.randint(3, 20)
        return as_typed(rng, one_of(rng, _UP_TO, high=high)), _numbers(range(1, high + 1))
    if roll < 0.82:
        return as_typed(rng, one_of(rng, _DOWN, low=low, high=high)), _numbers(range(high, low - 1, -1))
    high = rng.randint(3, 15)
    return as_typed(rng, one_of(rng, _DOWN_FROM, high=high)), _numbers(range(high, 0, -1))


def _numbers(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."
