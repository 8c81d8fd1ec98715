"""Phrases with alternatives: ``[Hello|Hi], {name}`` becomes one of its sentences."""

import re
from random import Random

Turn = tuple[str, str]
"""What the user says, and the reply."""

Templates = tuple[str, ...]
Subjects = list[tuple[Templates, Templates]]
"""What may be asked, and what may be answered."""

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")


def each(text: str, separator: str = " / ") -> Templates:
    """Return the templates of a text, in which `separator` is between them and line breaks are spaces."""
    return tuple(" ".join(text.split()).split(separator))


def pairs(text: str) -> dict[str, str]:
    """Return the pairs of a text such as ``France=Paris / Germany=Berlin``."""
    return dict(pair.split("=") for pair in each(text))


def answers(text: str) -> Subjects:
    """Return the subjects of a text such as ``question / question = reply / reply // question = reply``."""
    subjects = (subject.split(" = ") for subject in each(text, " // "))
    return [(each(asked), each(replies)) for asked, replies in subjects]


def phrase(rng: Random, template: str, **fields: object) -> str:
    """Choose among the alternatives of a template and fill its fields.

    ``[a|b|c]`` stands for one of its alternatives, nested or not; ``{name}`` for a field. Fields are filled in last, so
    that they may hold any character.
    """
    count = 1
    while count:
        template, count = _ALTERNATIVES.subn(lambda match: rng.choice(match[1].split("|")), template)
    return " ".join(template.format(**fields).split())


def one_of(rng: Random, templates: Templates, **fields: object) -> str:
    """Return a phrase of one of the templates."""
    return phrase(rng, rng.choice(templates), **fields)


_OPENINGS = each("""[Could you help me|I need your help|Listen|Here is one|Let me ask you this|Something else|For my
    homework|My son asks|I was asked this]: / [Excuse me|Sorry|Dear model|My friend|All right|Hello again|Good
    morning|By the way|Just curious|If you can], / [Please|Ok|Okay|So|Well|And now|Hey|One more|Tell
    me|Say|Hi|Hello|Then|Right|Thanks|Great|Hm|Next|Now|Good], / [Quick question|A question|My question|One thing|Next
    question|I wonder|Remind me|I'd like to know]: / [And|So|But|Now|Well|Then] / [Thank you!|Thanks.|Nice.|I
    see.|Ok.|Hi!|Hello!|Good.|Interesting.|My turn.]""")
_CLOSINGS = each("""[again|then|exactly|now|for me|here|really|today|by the way|actually|in fact|once more|at all|in
    your opinion|right now] / , [please|thanks|do you know|can you tell me|my friend|tinychat|then|if you know|by any
    chance]""")
# Other words for the beginnings that most templates share: none of them changes what is asked.
_OTHER_WORDS = {
    r"^What(?: is|'s)\b": (
        "[What would be|What could be|What was|What might be|Say what is|What exactly is|Please name|I am looking for|"
        "I need to know|Remind me of|I'd love to know|Can you give me|Do you have]"
    ),
    r"^(?:Tell|Give) me\b": (
        "[Could you tell me|Please give me|I want to know|I need|Can you say|Let me know|Show me|I would love|I'd "
        "like|May I have|Could I get]"
    ),
    r"^Do you know\b": "[Do you still know|Do you perhaps know|Could you know|You know|Do you also know]",
    r"^Can you\b": "[Could you|Would you|Will you|Are you able to|Could you please]",
    r"^(?:Which|What) (?=[a-z]+ (?:is|does|comes|do)\b)": "[What kind of|Just which|And which|Tell me which]",
    r"^Count\b": "[Could you count|Please count|I want you to count|Now count|Let us count]",
    r"^How (?=(?:can|do) I\b)": "[Just how|And how|Tell me how|Please explain how]",
    r"^How (?:can|do) I\b": "[How could I|How might I|How would I|What must I do to|How does one|How to]",
    r"^(?=(?:Which|What|Where|Who|How) )": (
        "[Can you tell me|I wonder|I'd like to know|Please say|Could you explain|Do you remember|Any idea]:"
    ),
    r"^(?:Which|What) (?=(?:day|month|city|country|word|animal|sound|noise|colou?r|number|command|flag) )": (
        "[Which|What|Now what|Which exact|So what|Say which]"
    ),
    r"^How many\b": "[Just how many|How many|And how many|Say how many|Do you know how many]",
}
_ASKED_LAST = re.compile(r"^What(?: is|'s) ((?:the|my|your) [^?]+)\?$")
_LAST = each("""{it}, what is it? / {it} is what? / {it} is? / {it}, please. / {it}: what might it be? /
    {it} - do you know it?""")


def as_typed(rng: Random, text: str) -> str:
    """Return a message as people type it: in other words, with an opening, without capitals or its full stop."""
    if rng.random() < 0.35:
        text = _in_other_words(rng, text)
    roll = rng.random()
    if roll < 0.14:
        text = phrase(rng, rng.choice(_OPENINGS)) + " " + lower_first(text)
    elif roll < 0.24 and text[-1] in "?.":
        closing = phrase(rng, rng.choice(_CLOSINGS))
        text = f"{text[:-1]}{'' if closing[0] == ',' else ' '}{closing}{text[-1]}"
    roll = rng.random()
    if roll < 0.12:
        text = text.lower()
    if 0.06 < roll < 0.22:
        text = text.rstrip("?.!")
    if 0.22 < roll < 0.25:
        text = text.rstrip("?.!") + rng.choice(("??", "!", " ?", "..", "!!"))
    return " ".join(text.split())


def _in_other_words(rng: Random, text: str) -> str:
    asked = _ASKED_LAST.match(text)
    if asked and rng.random() < 0.25:
        return rng.choice(_LAST).format(it=upper_first(asked[1]))
    fitting = [(beginning, others) for beginning, others in _OTHER_WORDS.items() if re.search(beginning, text)]
    if not fitting:
        return text
    beginning, others = rng.choice(fitting)
    return " ".join(re.sub(beginning, phrase(rng, others) + " ", text, count=1).split())


def lower_first(text: str) -> str:
    """Return the text with a small first letter, unless its first word is "I" or a name in capitals."""
    first = text.split(" ", 1)[0]
    return text if first in ("I", "I'm", "I've", "I'd") else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """Return the noun with "a" or "an" before it."""
    return ("an " if noun[0].lower() in "aeio" or noun.startswith("um") else "a ") + noun
