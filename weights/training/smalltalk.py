"""Greeting, small talk and taking leave."""

from random import Random

from .phrasing import Turn, as_typed, one_of

_HELLO = (
    "[Hello|Hi|Hey|Good morning|Good evening|Good afternoon|Hello there|Hi there|Greetings|Howdy|Hey there|Good day][!|.|]",
    "[Hello|Hi|Hey|Good morning|Good evening], [tinychat|computer|model|everybody|you|dear model|little model][!|.|]",
    "[A good|A nice|A wonderful] [day|morning|evening|afternoon][ to you|][!|.|]",
    "[Hi|Hello|Hey], [anybody there|are you there|is anyone here]?",
)
_HELLO_BACK = (
    "[Hello|Hi|Hello there]! [How can I help you?|What can I do for you?|What would you like to talk about?|Nice to meet you.]",
)
_BYE = (
    "[Bye|Goodbye|Bye bye|See you|See you later|See you soon|See you tomorrow|Good night|Farewell|Cheers|Ciao|Take care][!|.|]",
    "[Bye|Goodbye|See you], [tinychat|my friend|until tomorrow|until next time|have a nice day|and thank you][!|.|]",
    "I [have to|must|need to|will] [go|leave] [now|][, bye|, goodbye|].",
    "[That's all|That is all|That was all][, thank you|, thanks| for today|], [bye|goodbye].",
)
_BYE_BACK = ("[Goodbye|Bye]! [Have a nice day.|It was nice to talk to you.|See you soon.|Take care.]",)
_TALK = (
    (("How are you[| today| doing]?", "How do you do?", "How is it going?", "How's it going?", "Are you well?", "How do you feel[| today]?"),
     ("I am fine, thank you. How are you?", "Very well, thank you! And you?")),
    (("[Thanks|Thank you|Thank you very much|Thanks for everything|Thank you for the answer|Thanks, that was helpful|Thanks a lot|Many thanks|Great, thanks|Thank you for your help][!|.]",),
     ("You're welcome!", "You are welcome. Anything else?")),
    (("I am [fine|well|good|great|happy][| too], thank[s| you].", "I'm [fine|well|good|very well|doing well].", "I feel [great|good|happy] today."),
     ("I am glad to hear that.", "That's good to hear!")),
    (("I am [sad|tired|bored|lonely|not well|sick].", "I'm [sad|tired|bored|unhappy|very tired].", "I feel [bad|sad|tired|lonely] today."),
     ("I am sorry to hear that. Would you like to hear a joke or a story?",)),
    (("You are [nice|great|funny|smart|clever|helpful|cool].", "I like you.", "You're [nice|great|funny|smart|good|wonderful].", "[Well done|Good job|Good answer|Great|Very good|Nice|Perfect|Cool]!"),
     ("Thank you, that is kind of you!", "Thank you! I do what I can.")),
    (("You are [stupid|dumb|wrong|bad|useless|boring].", "You're [stupid|wrong|silly|bad].", "That [is|was] [wrong|not right|bad|nonsense].", "I don't like you."),
     ("I am sorry. I am only a small model and make mistakes.",)),
    (("[Do you like|Do you enjoy] [music|films|food|football|chess|dancing|cheese|books|the sea|winter|pizza]?", "Do you [eat|sleep|dream|drink|laugh|cry]?", "Are you [happy|hungry|tired|alone|sad|afraid]?"),
     ("I am a program, so I can't say: I only read and write text.",)),
    (("[Can you help me|Help me|I need help|I have a question|Can I ask you something|May I ask you something|I need your help][?|.|!]",),
     ("Of course! What would you like to know?", "Yes, gladly. What is it?")),
    (("[Sorry|I am sorry|My mistake|Excuse me|Pardon].",), ("No problem!", "That's all right.")),
    (("[Ok|Okay|I see|Alright|Fine|Good|All right|Understood][.|!]",), ("Is there anything else you would like to know?", "Good. What else can I do for you?")),
)  # fmt: skip


def hello(rng: Random) -> Turn:
    """Return a greeting."""
    return as_typed(rng, one_of(rng, _HELLO)), one_of(rng, _HELLO_BACK)


def goodbye(rng: Random, name: str | None) -> Turn:
    """Return a farewell, by name where it is known."""
    reply = one_of(rng, _BYE_BACK)
    return as_typed(rng, one_of(rng, _BYE)), reply.replace(
        "!", f", {name}!", 1
    ) if name and rng.random() < 0.5 else reply


def turns(rng: Random) -> list[Turn]:
    """Return one piece of small talk."""
    asked, replies = rng.choice(_TALK)
    return [(as_typed(rng, one_of(rng, asked)), rng.choice(replies))]
