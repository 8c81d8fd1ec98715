"""Jokes and riddles."""

from random import Random

from .phrasing import Turn, as_typed, one_of

JOKES = (
    "Why did the bicycle lean against the wall? Because it was two-tired.",
    "What do you call a bear without teeth? A gummy bear.",
    "Why can't a nose be twelve inches long? Because then it would be a foot.",
    "Why was the maths book sad? It had too many problems.",
    "What do you call a sleeping bull? A bulldozer.",
    "Why did the computer go to the doctor? It had caught a virus.",
    "What did one wall say to the other? Let's meet at the corner.",
    "Why do bees hum? Because they don't know the words.",
    "What is orange and sounds like a parrot? A carrot.",
    "Why was the small language model so calm? It had very few parameters to worry about.",
    "How does the ocean say hello? It waves.",
    "Why did the scarecrow win a prize? He was outstanding in his field.",
    "What do you get when you cross a snowman with a dog? Frostbite.",
    "Why do programmers mix up Halloween and Christmas? Because oct 31 is dec 25.",
)
RIDDLES = {
    "What has hands but cannot clap?": "A clock.",
    "What gets wetter the more it dries?": "A towel.",
    "What has a neck but no head?": "A bottle.",
    "What has keys but opens no door?": "A piano.",
    "What can you catch but not throw?": "A cold.",
    "What has teeth but cannot bite?": "A comb.",
    "What goes up but never comes down?": "Your age.",
    "What has one eye but cannot see?": "A needle.",
    "What runs but has no legs?": "A river.",
    "What is full of holes but still holds water?": "A sponge.",
    "What belongs to you but is used more by others?": "Your name.",
    "What has many leaves but is not a tree?": "A book.",
    "The more you take away, the bigger it gets. What is it?": "A hole.",
}

_ASK_JOKE = (
    "[Tell me|Do you know|Can you tell me|Say|Let me hear|I want to hear|Got|Have you got|Give me] a [|good |funny |short |silly ]joke?",
    "[Make me laugh|Say something funny|Tell me something funny|Be funny|Cheer me up].",
    "[A joke|Joke], please.",
    "Do you know [any|some|a few] jokes?",
)
_ANOTHER = (
    "Another [one|joke]?",
    "[Tell me another|One more|Do you have another] joke?",
    "More jokes, please.",
    "[That was funny|Haha|Ha ha|Good one]. Another one?",
)
_ASK_RIDDLE = (
    "[Tell me|Do you know|Can you tell me|Give me|Ask me|Let me hear|Do you have] a [|good |hard |short |nice ]riddle?",
    "[A riddle|Riddle], please.",
    "Do you know [any|some] riddles?",
)
_GIVE_UP = (
    "[I don't know|I give up|No idea|Tell me|I have no idea|Hmm, no idea]. What is [it|the answer]?",
    "[What is the answer|What is it|What is the solution]?",
    "[I give up|I don't know|No idea].",
)
_GOOD_LUCK = ("Right!", "Yes, well done!", "Correct!", "That's it!")


def turns(rng: Random) -> list[Turn]:
    """Return a joke or two, or a riddle with its answer."""
    return _jokes(rng) if rng.random() < 0.5 else _riddle(rng)


def _jokes(rng: Random) -> list[Turn]:
    result: list[Turn] = []
    for joke in rng.sample(JOKES, rng.choice((1, 1, 2, 3))):
        result.append((as_typed(rng, one_of(rng, _ANOTHER if result else _ASK_JOKE)), joke))
    return result


def _riddle(rng: Random) -> list[Turn]:
    riddle = rng.choice(list(RIDDLES))
    answer = RIDDLES[riddle]
    if rng.random() < 0.3:
        return [(as_typed(rng, riddle), answer)]
    asked = as_typed(rng, one_of(rng, _ASK_RIDDLE)), riddle
    if rng.random() < 0.6:
        return [asked, (as_typed(rng, one_of(rng, _GIVE_UP)), answer)]
    guess = one_of(rng, ("{it}", "Is it {it}?", "I think it is {it}."), it=answer[:1].lower() + answer[1:-1])
    return [asked, (as_typed(rng, guess), f"{rng.choice(_GOOD_LUCK)} {answer}")]
