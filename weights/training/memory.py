"""What the user says about themselves, and what is remembered of it later in the conversation."""

from random import Random
from typing import NamedTuple

from .names import ANIMALS, COLOURS, a_city, a_name
from .phrasing import Templates, Turn, as_typed, each, one_of, with_article


class Kind(NamedTuple):
    """A kind of thing that users tell: how they tell it and ask for it, and the replies."""

    tell: Templates
    heard: Templates
    ask: Templates
    recall: Templates
    untold: Templates


KINDS = {
    "name": Kind(
        tell=each("""[My first name is|My friends call me|I go by|My parents called me|Remember my name, it is|Just
            call me] {value}. / [May I introduce myself|Let me introduce myself]: {value}. /
            [My name is|I am|I'm|Call me|You can call me|Please call me|They call me|Everyone calls me|People call me]
            {value}. / [Hello|Hi|Hey|Good morning|Good evening], [my name is|I am|I'm|this is] {value}. /
            [Hello|Hi], I'm {value}[, nice to meet you|, how are you|]. / [By the way, |]my name is {value}. /
            The name is {value}. / {value} is my name."""),
        heard=each("""Nice to meet you, {value}! / Hello {value}, nice to meet you! / Hi {value}! How can I help you? /
            Pleased to meet you, {value}. I will remember your name."""),
        ask=each("""[What is|What's|Do you remember|Do you know|Tell me|Can you tell me|Remember] my name? /
            What am I called? / Who am I? / [Do you remember|Do you know|Can you tell me|Tell me] [who I am|what I am
            called|what my name is]? / [What|Which] name did I [tell you|give you|say]? / What did I say my name was? /
            How am I called? / [And|So|Well,] my name [was|is]? / [Say|Repeat|Give me|Write] my name. /
            [Have you forgotten|Did you forget|Can you still say|Have you noted|Do you still have] my name? /
            [By which|With what] name [should you|do you] [call|address] me? / How [do|should|can] you call me? /
            What do [people|my friends] call me?"""),
        recall=each("""Your name is {value}. / Your name is {value}. / You are {value}. /
            Your name is {value}, of course."""),
        untold=each("You haven't told me your name yet. / I don't know your name yet. What is it?"),
    ),
    "colour": Kind(
        tell=each("""My favo[u|]rite colo[u|]r is {value}. / I [love|like|prefer] [the colour |the color |]{value}[|
            most| best| more than other colours]. / {value} is my favo[u|]rite colo[u|]r. /
            The colo[u|]r I [like|love] [best|most] is {value}. / [By the way, |]my favo[u|]rite colo[u|]r is {value}. /
            If I could choose a colo[u|]r, it would be {value}. / No colo[u|]r is [better|nicer|prettier] than {value}[
            for me|]. / I [really|simply|just] [love|like] {value}[, it is my favo[u|]rite colo[u|]r|, the
            colo[u|]r]."""),
        heard=each("{Value} is a beautiful colour. / I will remember that you like {value}. / {Value}, a fine choice!"),
        ask=each("""[What is|What's|Do you remember|Do you know|Tell me|Can you tell me] my favo[u|]rite colo[u|]r? /
            [Which|What] colo[u|]r do I [like|love|prefer][| best| most]? / [Do you remember|Do you know|Can you tell
            me|Tell me] [which|what] colo[u|]r I [like|love|prefer][| best| most]? / What did I say my favo[u|]rite
            colo[u|]r was? / [And|So|Well,] [my favo[u|]rite colo[u|]r|the colo[u|]r I like] [was|is]? /
            [Say|Repeat|Name|Recall] my favo[u|]rite colo[u|]r. / [Have you forgotten|Did you forget] [my favo[u|]rite
            colo[u|]r|which colo[u|]r I like]? / [Which|What] is the colo[u|]r [that I like|I told you about|of my
            choice]?"""),
        recall=each("Your favourite colour is {value}. / You like {value}."),
        untold=each("You haven't told me your favourite colour yet. / I don't know your favourite colour yet."),
    ),
    "animal": Kind(
        tell=each("""My favo[u|]rite animal is the {value}. / My favo[u|]rite animal is {a_value}. /
            I [love|like] {value}s[| most| best| more than other animals]. / The animal I [like|love] [best|most] is the
            {value}. / The {value} is my favo[u|]rite animal. / I [really|simply|just] [love|like] {value}s[, they are
            my favo[u|]rite animals|]. / For me the {value} is the [best|nicest|finest] [animal|of all animals]. /
            Of all animals I [like|love] the {value} [best|most]."""),
        heard=each("""The {value} is a wonderful animal. / I will remember that you like the {value}. /
            The {value}, how nice!"""),
        ask=each("""[What is|What's|Do you remember|Do you know|Tell me|Can you tell me] my favo[u|]rite animal? /
            [Which|What] animal do I [like|love][| best| most]? / [Do you remember|Do you know|Can you tell me|Tell me]
            [which|what] animal I [like|love][| best| most]? / What did I say my favo[u|]rite animal was? /
            [And|So|Well,] [my favo[u|]rite animal|the animal I like] [was|is]? / [Say|Repeat|Name|Recall] my
            favo[u|]rite animal. / [Have you forgotten|Did you forget] [my favo[u|]rite animal|which animal I like]? /
            [Which|What] is the animal [that I like|I told you about]?"""),
        recall=each("Your favourite animal is the {value}. / You like the {value}."),
        untold=each("You haven't told me your favourite animal yet. / I don't know your favourite animal yet."),
    ),
    "city": Kind(
        tell=each("""I live in {value}. / I am from {value}. / I'm from {value}. / My [home|city|home town|hometown] is
            {value}. / I come from {value}. / My [family|wife|husband] and I live in {value}. /
            {value} is [where I live|my home town|my home|the city I live in]. / I [am at home|am living|have lived for
            years|grew up|work and live] in {value}. / I [moved to|have a flat in|have a house in|was born in]
            {value}. / [By the way, |]I live in {value}[| now| with my family]."""),
        heard=each("""{value} sounds like a nice place. / I will remember that you are from {value}. /
            I hope that life in {value} is good."""),
        ask=each("""Where do I live? / Where am I from? / [Which|What] city [am I from|do I live in|do I come from]? /
            [Do you remember|Do you know|Can you tell me|Tell me] where I [live|am from|come from]? /
            [What is|What's] my [city|home town|home]? / [In which|In what] city do I live? /
            Where did I say I [live|am from]? / [And|So|Well,] [my city|my home town|my home|the place where I live]
            [was|is]? / [Say|Repeat|Name|Recall] [my city|my home town|where I live]. / [Have you forgotten|Did you
            forget] [where I live|where I am from|my city]? / [Which|What] place do I [live in|come from|call home]? /
            Where [am I at home|is my home|do I come from|was I from|did I live]?"""),
        recall=each("You are from {value}. / You live in {value}."),
        untold=each("You haven't told me where you live yet. / I don't know where you live yet."),
    ),
    "pet": Kind(
        tell=each("""I have {a_kind} [called|named] {value}. / My {kind} is called {value}. /
            My {kind}'s name is {value}. / The name of my {kind} is {value}. / I've got {a_kind}. [His|Her|Its] name is
            {value}. / [We have|At home I have|I own|There is] {a_kind} [called|named] {value}[ in my house|]. /
            {value} is [the name of my {kind}|my {kind}|what I call my {kind}]."""),
        heard=each("""{value} is a lovely name for a {kind}. / I will remember that your {kind} is called {value}. /
            Say hello to {value} from me!"""),
        ask=each("""[What is|What's|Do you remember|Do you know] my {kind}'s name? / [What is|Do you remember|Tell me]
            the name of my {kind}? / What is my {kind} called? / [And|So|Well,] [my {kind}'s name|the name of my {kind}]
            [was|is]? / [Say|Repeat|Recall] the name of my {kind}. / [Have you forgotten|Did you forget] [my {kind}'s
            name|what my {kind} is called]? / What [name does my {kind} have|do I call my {kind}]? /
            How [do I call|did I name] my {kind}? / Who is my {kind}? / [Do you remember|Do you know|Can you tell me]
            what my {kind} is called?"""),
        recall=each("Your {kind} is called {value}. / Your {kind}'s name is {value}."),
        untold=each("You haven't told me the name of your {kind} yet. / I don't know what your {kind} is called."),
    ),
}
_SUMMARY = each("""What do you know about me? / [Tell me what|What] [do you remember|have I told you] about me? /
    What did I tell you about [me|myself]?""")
_PETS = "dog cat horse hamster rabbit parrot fish turtle mouse bird".split()
_CORRECTIONS = ("No, ", "Actually, ", "Sorry, I was wrong: ", "Wait, ")


class Memory:
    """What one conversation's user has told so far."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._values: dict[str, str] = {}
        self._pet = rng.choice(_PETS)

    def known(self) -> list[str]:
        """Return the kinds of things told so far."""
        return list(self._values)

    @property
    def name(self) -> str | None:
        """The user's name, if told."""
        return self._values.get("name")

    def tell(self, kind: str) -> Turn:
        """Let the user tell a thing, once more with another value if it was told already."""
        is_correction = kind in self._values and kind != "pet"
        self._values[kind] = self._new_value(kind)
        question = self._phrase(kind, KINDS[kind].tell)
        if is_correction:
            question = self._rng.choice(_CORRECTIONS) + question
        return as_typed(self._rng, question), self._phrase(kind, KINDS[kind].heard)

    def tell_two(self, first: str, second: str) -> Turn:
        """Let the user tell two things in one message."""
        (one, _), (other, reply) = self.tell(first), self.tell(second)
        return f"{one.rstrip('.')} and {other[:1].lower() + other[1:] if other[:2] != 'I ' else other}", reply

    def ask(self, kind: str) -> Turn:
        """Let the user ask for a thing, told or not."""
        replies = KINDS[kind].recall if kind in self._values else KINDS[kind].untold
        return as_typed(self._rng, self._phrase(kind, KINDS[kind].ask)), self._phrase(kind, replies)

    def ask_all(self) -> Turn:
        """Let the user ask for everything told."""
        known = [KINDS[kind].recall[0].format(**self._fields(kind)) for kind in KINDS if kind in self._values]
        question = as_typed(self._rng, one_of(self._rng, _SUMMARY))
        return question, " ".join(known) or "You haven't told me anything about you yet."

    def _new_value(self, kind: str) -> str:
        if kind in ("name", "pet"):
            return a_name(self._rng)
        if kind == "city":
            return a_city(self._rng)
        return self._rng.choice(COLOURS if kind == "colour" else ANIMALS)

    def _phrase(self, kind: str, templates: Templates) -> str:
        return one_of(self._rng, templates, **self._fields(kind))

    def _fields(self, kind: str) -> dict[str, str]:
        value = self._values.get(kind, "")
        a_value = with_article(value) if value else ""
        a_kind = with_article(self._pet)
        return {"value": value, "Value": value.capitalize(), "a_value": a_value, "kind": self._pet, "a_kind": a_kind}
