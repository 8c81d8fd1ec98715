"""Questions that were not taught, and the honest answer."""

from random import Random

from .capitals import CAPITALS
from .names import ANIMALS, a_city, a_name, new_word
from .phrasing import Turn, as_typed, one_of

_TOPICS = """physics|history|chemistry|football|tennis|music|politics|economics|philosophy|biology|religion|cooking|medicine|
    law|painting|astronomy|cars|computers|poetry|geology|fashion|gardening|sailing|chess|yoga|mathematics|films|opera|
    quantum mechanics|relativity|evolution|volcanoes|the Roman Empire|the French Revolution|black holes|dinosaurs|
    photosynthesis|inflation|gravity|electricity|DNA|the stock market|climate change|World War II""".replace(
    "\n    ", ""
).split("|")
_THINGS = """cake|bread|soup|pizza|pancakes|a table|a boat|a kite|a shed|a website|a fire|jam|cheese|a paper plane|soap|
    a snowman|wine|pasta|curry|a robot|an omelette|a cupboard|a bicycle|coffee|sushi|a bridge""".replace(
    "\n    ", ""
).split("|")
_ASK = (
    "Who [wrote|painted|invented|discovered|composed|won] {work}?",
    "When [was|did] {name} [born|die|married|win]?",
    "Who [is|was] {name} {word}?",
    "What [is|was] the [population|area|currency|flag|anthem|language|president|history|weather|highest mountain|longest river] of {place}?",
    "How many people live in {place}?",
    "[What is|How is|What's] the weather [like |][today|tomorrow|in {place}]?",
    "Will it rain [today|tomorrow|in {place}]?",
    "How do [I|you] [make|build|cook|bake|repair] {thing}?",
    "[Explain|Tell me about|Teach me|What do you know about|What can you say about] {topic}[| to me].",
    "What is {topic}?",
    "Do you know [anything|something|much] about {topic}?",
    "How does {topic} work?",
    "What time is it[| now| in {place}]?",
    "What [day|date] is it[ today|]?",
    "What is the [news|latest news|news today]?",
    "How [far|long] is it from {place} to {place2}?",
    "How [old|tall|rich|famous] is {name} {word}?",
    "[Which|What] [team|country|player|horse] won [the cup|the game|the race|the match|the election] in {year}?",
    "What happened in {year}?",
    "What is the meaning of [life|{word}]?",
    "What does {word} mean?",
    "Translate {thing} [into|to] [German|French|Spanish|Latin].",
    "[Write|Can you write] [a poem|an essay|a letter|a song|some code|a program|a speech] about {topic}.",
    "How [much|heavy|fast|big|long] is [{an_animal}|{thing}|a {word}]?",
    "Why is [the sky blue|the sea salty|grass green|ice slippery|the night dark|fire hot|{topic} important]?",
    "What do {animal}s eat?",
    "Where do {animal}s live?",
    "How long do {animal}s live?",
    "What is the [best|cheapest|nearest] [restaurant|hotel|phone|car|school|book|shop]?",
    "[Should|Can] I [buy|sell|drink|eat] [{thing}|shares|gold|that]?",
    "What is the [square root|cube|logarithm] of {year}?",
    "How many [stars|planets|people|countries|bones|languages] are there?",
    "What is a {word}?",
    "What will I [eat|do|dream] tomorrow?",
    "How many legs [has|does] {an_animal}[| have]?",
    "[What is|What's] my [age|phone number|address|job|birthday|shoe size|mother's name]?",
    "How old am I?",
    "[Who|What] is the [king|queen|president|prime minister] of {place}?",
)
_WORKS = (
    "Hamlet|the telephone|penicillin|the Mona Lisa|the last world cup|the wheel|Don Quixote|the light bulb|America|the Moonlight Sonata|"
    "the radio|Faust|Guernica|the Odyssey|the steam engine|the Nobel Prize|the zip|the piano|Moby Dick|radium|the first computer"
).split("|")
_DUNNO = (
    "I don't know that. I am only a small demo model.",
    "I don't know, sorry: I learned only a few things.",
    "Sorry, I don't know. A larger model could tell you: try tinychat pull.",
)


_UNCLEAR = ("I don't understand that. Can you say it in other words?", "Sorry, I did not understand that.")


def turns(rng: Random) -> list[Turn]:
    """Return a question that the model can't answer, or words without sense."""
    if rng.random() < 0.06:
        words = [new_word(rng).lower() for _ in range(rng.randint(1, 4))]
        return [(as_typed(rng, " ".join(words)), rng.choice(_UNCLEAR))]
    animal = rng.choice(ANIMALS)
    place = rng.choice(list(CAPITALS)) if rng.random() < 0.6 else a_city(rng)
    question = one_of(
        rng,
        _ASK,
        work=rng.choice(_WORKS),
        name=a_name(rng),
        word=new_word(rng) if rng.random() < 0.5 else new_word(rng).lower(),
        place=place,
        place2=a_city(rng),
        topic=rng.choice(_TOPICS),
        thing=rng.choice(_THINGS),
        animal=animal,
        an_animal=("an " if animal[0] in "aeio" else "a ") + animal,
        year=rng.randint(1000, 2030),
    )
    return [(as_typed(rng, question), rng.choice(_DUNNO))]
