"""Facts: capitals, opposites and plurals, sounds of animals and colours of things."""

from random import Random

from .phrasing import Turn, as_typed, each, one_of, pairs, phrase, upper_first, with_article

CAPITALS = pairs("""France=Paris / Germany=Berlin / Italy=Rome / Spain=Madrid / Portugal=Lisbon / Austria=Vienna /
    Switzerland=Bern / Belgium=Brussels / the Netherlands=Amsterdam / Denmark=Copenhagen / Sweden=Stockholm /
    Norway=Oslo / Finland=Helsinki / Iceland=Reykjavik / Ireland=Dublin / the United Kingdom=London / Poland=Warsaw /
    the Czech Republic=Prague / Hungary=Budapest / Greece=Athens / Turkey=Ankara / Russia=Moscow / Ukraine=Kyiv /
    Romania=Bucharest / Bulgaria=Sofia / Serbia=Belgrade / Croatia=Zagreb / Slovenia=Ljubljana / Slovakia=Bratislava /
    Estonia=Tallinn / Latvia=Riga / Lithuania=Vilnius / the United States=Washington / Canada=Ottawa /
    Mexico=Mexico City / Brazil=Brasilia / Argentina=Buenos Aires / Chile=Santiago / Peru=Lima / Colombia=Bogota /
    Cuba=Havana / Uruguay=Montevideo / Ecuador=Quito / Egypt=Cairo / Morocco=Rabat / Tunisia=Tunis / Kenya=Nairobi /
    Ghana=Accra / Ethiopia=Addis Ababa / Nigeria=Abuja / Israel=Jerusalem / Iran=Tehran / Iraq=Baghdad / India=Delhi /
    Nepal=Kathmandu / China=Beijing / Japan=Tokyo / South Korea=Seoul / Vietnam=Hanoi / Thailand=Bangkok /
    Indonesia=Jakarta / the Philippines=Manila / Australia=Canberra / New Zealand=Wellington""")
# Countries whose capital was not taught: the honest answer is that it does not know.
_UNTAUGHT = each("""Mongolia / Bhutan / Laos / Cambodia / Malaysia / Pakistan / Oman / Qatar / Yemen / Jordan /
    Libya / Sudan / Chad / Mali / Niger / Togo / Benin / Gabon / Angola / Zambia / Zimbabwe / Botswana / Namibia /
    Malawi / Uganda / Rwanda / Senegal / Bolivia / Paraguay / Panama / Honduras / Haiti / Jamaica / Belize / Fiji /
    Samoa / Tonga / Malta / Cyprus / Albania / Moldova / Armenia / Georgia / Kazakhstan / Uzbekistan / Luxembourg /
    Monaco / Andorra / Atlantis / Narnia / the moon / Mars / Texas / Bavaria""")
_ASK_CAPITAL = each("""[What is|What's|Tell me|Do you know|Can you tell me|Name|Say] the capital [|city ]of
    {country}? / [Which|What] city is the capital of {country}? / What is {country}'s capital? /
    The capital of {country}? / Capital of {country}? / {country}: what is its capital? / What is the [name of the
    capital|capital city called] [of|in] {country}? / I [forgot|need|want to know|would like to know] the capital of
    {country}. / [Which|What] is the capital of {country}? / What do they call the capital of {country}?""")
_ASK_COUNTRY = each("""[Which|What] country is {city} the capital of? / {city} is the capital of [which|what]
    country? / [Which|What] country has {city} as its capital? / Of [which|what] country is {city} the capital? /
    {city} is the capital of? / [Tell me which|Do you know which|Which] country's capital is {city}?""")
_WHERE = each("[In which|In what|Which|What] country is {city}[| in]? / Where is {city}? / Where can I find {city}?")
_IS_IT = each("Is {city} the capital of {country}? / {city} is the capital of {country}, right?")
_AND_CAPITAL = each("""[And|What about|How about|And what about] {country}? / And of {country}? /
    And the capital of {country}? / And for {country}?""")
_CAPITAL = each("""The capital of {country} is {city}. / The capital of {country} is {city}. / It is {city}. /
    {city} is the capital of {country}.""")
_NO_CAPITAL = each("""I don't know the capital of {country}. I [learned|know] only about sixty capitals. /
    I don't know that one: {country} is not among the countries I learned.""")

_OPPOSITE_PAIRS = """hot-cold big-small tall-short fast-slow light-dark day-night young-old new-old happy-sad
    rich-poor hard-soft wet-dry full-empty open-closed up-down left-right in-out early-late strong-weak clean-dirty
    good-bad easy-difficult loud-quiet high-low long-short near-far thick-thin wide-narrow sweet-sour true-false
    alive-dead brave-afraid front-back first-last begin-end buy-sell give-take push-pull win-lose love-hate ask-answer
    always-never black-white cheap-expensive deep-shallow heavy-light smooth-rough sharp-blunt warm-cool inside-outside
    above-below before-after yes-no more-less north-south east-west friend-enemy noisy-silent polite-rude safe-dangerous
    simple-complicated""".split()
_PLURALS = pairs("""mouse=mice / child=children / man=men / woman=women / foot=feet / tooth=teeth / goose=geese /
    person=people / sheep=sheep / fish=fish / deer=deer / leaf=leaves / wolf=wolves / knife=knives / life=lives /
    wife=wives / half=halves / loaf=loaves / shelf=shelves / thief=thieves / city=cities / baby=babies / story=stories /
    party=parties / lady=ladies / country=countries / berry=berries / puppy=puppies / fly=flies / box=boxes /
    fox=foxes / bus=buses / glass=glasses / dish=dishes / watch=watches / church=churches / brush=brushes /
    potato=potatoes / tomato=tomatoes / hero=heroes / ox=oxen / cat=cats / dog=dogs / book=books / house=houses /
    tree=trees / car=cars / day=days / boy=boys / key=keys / toy=toys / apple=apples / horse=horses / bird=birds /
    table=tables / chair=chairs / flower=flowers / friend=friends / river=rivers / window=windows / door=doors /
    ship=ships / cactus=cacti / crisis=crises / bench=benches / peach=peaches / cherry=cherries /
    family=families""")
_OPPOSITES: dict[str, str] = {}
for _one, _other in (pair.split("-") for pair in _OPPOSITE_PAIRS):
    # A word that has two opposites keeps the first.
    _OPPOSITES.setdefault(_one, _other)
    _OPPOSITES.setdefault(_other, _one)
_WITHOUT_OPPOSITE = """purple table seven pencil lamp mountain piano triangle Tuesday cheese music window spoon garden
    river elephant radio butter paper engine""".split()
_ASK_OPPOSITE = each("""[What is|What's|Tell me|Do you know|Give me|Say] the opposite of {word}? /
    [What is|What's] the opposite of the word {word}? / What is the opposite of "{word}"? / Opposite of {word}? /
    The opposite of {word} is? / [Which|What] word is the opposite of {word}? / [Which|What] word means the opposite of
    {word}? / {word}: what is the opposite? / If something is not {word}, what is it?""")
_OPPOSITE = each("The opposite of {word} is {answer}. / The opposite of {word} is {answer}. / It is {answer}.")
_ASK_PLURAL = each("""[What is|What's|Tell me|Do you know|Give me|Say] the plural of {word}? /
    [What is|What's] the plural of the word {word}? / What is the plural of "{word}"? / Plural of {word}? /
    The plural of {word} is? / One {word}, two what? / One {word}, [two|three|many] ...? /
    How do you [write|say|spell] more than one {word}? / What do you call [two|several|many] of them: one {word},
    [two|several|many] what? / {word}: what is the plural? / What is the plural form of {word}?""")
_PLURAL = each("The plural of {word} is {answer}. / The plural of {word} is {answer}. / One {word}, two {answer}.")
_AND_WORD = each("[And|What about|How about|And what about] {word}? / And of {word}? / And {word}?")
_NO_OPPOSITE = each("""I don't know an opposite of {word}. / I don't think that {word} has an opposite; at least I
    learned none.""")

# The verb, and the sound itself.
_SOUNDS = pairs("""cat=meows, meow / dog=barks, woof / cow=moos, moo / sheep=bleats, baa / duck=quacks, quack /
    pig=grunts, oink / horse=neighs, neigh / hen=clucks, cluck / rooster=crows, cock-a-doodle-doo / bee=buzzes, buzz /
    frog=croaks, croak / lion=roars, roar / tiger=growls, grr / wolf=howls, awoo / snake=hisses, hiss /
    owl=hoots, hoo-hoo / mouse=squeaks, squeak / donkey=brays, hee-haw / goat=bleats, meh / goose=honks, honk /
    turkey=gobbles, gobble / crow=caws, caw / elephant=trumpets, toot / chick=peeps, peep / bird=sings, tweet /
    bear=growls, grr / dove=coos, coo / cricket=chirps, chirp / cuckoo=calls, cuckoo / kitten=meows, meow""")
_SILENT = """giraffe rabbit turtle snail butterfly jellyfish starfish spider ant worm crab squid koala
    otter""".split()
_COLOURS = pairs("""the sky=blue / the sea=blue / grass=green / snow=white / milk=white / coal=black /
    the night=black / a banana=yellow / a lemon=yellow / the sun=yellow / blood=red / a tomato=red / a strawberry=red /
    a cherry=red / a carrot=orange / an orange=orange / a pumpkin=orange / chocolate=brown / wood=brown / a bear=brown /
    an elephant=grey / a mouse=grey / a frog=green / a leaf=green / a cucumber=green / broccoli=green /
    a flamingo=pink / a pig=pink / a raven=black / a swan=white / a polar bear=white / salt=white / sugar=white /
    an aubergine=purple / a plum=purple / lavender=purple / a fire engine=red / coffee=brown / a cloud=white /
    a canary=yellow / honey=golden / a sunflower=yellow / spinach=green / a raspberry=red / a blueberry=blue /
    rust=brown""")
_COLOURLESS = each("""a car / a house / a shirt / a book / a door / music / the wind / an idea / a bicycle / a hat /
    love / a balloon""")
_ASK_SOUND = each("""[What|Which] [sound|noise] does {animal} make? / What does {animal} say? /
    [What|Which] [sound|noise] do {bare}s make? / How does {animal} sound? / How does {animal} go? /
    What is the [sound|noise|cry|call] of {animal}? / [Tell me|Do you know] [what|which] [sound|noise] {animal} makes? /
    What do you hear when {animal} [is near|speaks|talks]? / The [sound|noise] of {animal}?""")
_SOUND = each("{Animal} {verb}: {sound}! / {Animal} {verb}: {sound}! / It {verb}: {sound}! / {Animal} says {sound}!")
_ASK_COLOUR = each("""[What|Which] [colour|color] is {thing}? / [What|Which] [colour|color] does {thing} have? /
    [What is|What's|Tell me|Do you know] the [colour|color] of {thing}? / [Tell me|Do you know] [what|which]
    [colour|color] {thing} is? / [The colour|The color|Colour|Color] of {thing}? / [What|Which] [colour|color] is
    {thing} usually? / In [what|which] [colour|color] would you paint {thing}?""")
_COLOUR = each("{Thing} is {colour}. / {Thing} is {colour}. / {Thing} is usually {colour}.")
_AND_THING = each("[And|What about|How about|And what about] {thing}? / And {thing}?")
_ANY_COLOUR = each("{Thing} can have any colour. / I can't say: {thing} has no colour of its own.")
_NO_SOUND = each("I don't know what sound {animal} makes. / I don't know: I never learned the sound of {animal}.")
_IRREGULAR = {"sheeps": "sheep", "mouses": "mice", "gooses": "geese", "wolfs": "wolves"}


def capitals(rng: Random) -> list[Turn]:
    """Return one question about a capital, or a few in a row."""
    country = rng.choice(list(CAPITALS))
    city, roll = CAPITALS[country], rng.random()
    if roll < 0.22:
        asked = as_typed(rng, one_of(rng, _ASK_COUNTRY, city=city))
        return [(asked, phrase(rng, "{city} is the capital of {country}.", city=city, country=country))]
    if roll < 0.28:
        return [(as_typed(rng, one_of(rng, _WHERE, city=city)), f"{city} is in {country}. It is the capital.")]
    if roll < 0.36:
        guess = city if rng.random() < 0.5 else rng.choice(list(CAPITALS.values()))
        asked = as_typed(rng, one_of(rng, _IS_IT, city=guess, country=country))
        right = f"{city} is the capital of {country}", f"the capital of {country} is {city}"
        return [(asked, f"Yes, {right[0]}." if guess == city else f"No, {right[1]}.")]
    if roll < 0.47:
        unknown = rng.choice(_UNTAUGHT)
        asked = as_typed(rng, one_of(rng, _ASK_CAPITAL, country=unknown))
        return [(asked, one_of(rng, _NO_CAPITAL, country=unknown))]
    asked = as_typed(rng, one_of(rng, _ASK_CAPITAL, country=country))
    result = [(asked, one_of(rng, _CAPITAL, country=country, city=city))]
    while rng.random() < 0.35:
        country = rng.choice(list(CAPITALS))
        reply = one_of(rng, _CAPITAL, country=country, city=CAPITALS[country])
        result.append((as_typed(rng, one_of(rng, _AND_CAPITAL, country=country)), reply))
    return result


def words(rng: Random) -> list[Turn]:
    """Return a question about an opposite or a plural, or a few in a row."""
    if rng.random() < 0.1:
        word = rng.choice(_WITHOUT_OPPOSITE)
        return [(as_typed(rng, one_of(rng, _ASK_OPPOSITE, word=word)), one_of(rng, _NO_OPPOSITE, word=word))]
    is_opposite = rng.random() < 0.5
    facts, ask, says = (_OPPOSITES, _ASK_OPPOSITE, _OPPOSITE) if is_opposite else (_PLURALS, _ASK_PLURAL, _PLURAL)
    result: list[Turn] = []
    while not result or rng.random() < 0.35:
        word = rng.choice(list(facts))
        asked = as_typed(rng, one_of(rng, _AND_WORD if result else ask, word=word))
        result.append((asked, one_of(rng, says, word=word, answer=facts[word])))
    return result


def nature(rng: Random) -> list[Turn]:
    """Return a question about a sound or a colour, or a few in a row."""
    roll = rng.random()
    if roll < 0.06:
        thing = rng.choice(_COLOURLESS)
        asked = as_typed(rng, one_of(rng, _ASK_COLOUR, thing=thing))
        return [(asked, one_of(rng, _ANY_COLOUR, thing=thing, Thing=upper_first(thing)))]
    if roll < 0.12:
        bare = rng.choice(_SILENT)
        animal = with_article(bare)
        asked = as_typed(rng, one_of(rng, _ASK_SOUND, animal=animal, bare=bare))
        return [(asked, one_of(rng, _NO_SOUND, animal=animal))]
    facts, ask, says = (_SOUNDS, _ASK_SOUND, _SOUND) if roll < 0.55 else (_COLOURS, _ASK_COLOUR, _COLOUR)
    result: list[Turn] = []
    while not result or rng.random() < 0.35:
        bare = rng.choice(list(facts))
        thing = with_article(bare) if facts is _SOUNDS else bare
        question = one_of(rng, _AND_THING if result else ask, thing=thing, animal=thing, bare=bare)
        for regular, plural in _IRREGULAR.items():
            question = question.replace(regular, plural)
        verb, _, sound = facts[bare].partition(", ")
        fields = {"Thing": upper_first(thing), "verb": verb, "sound": sound, "colour": verb}
        reply = one_of(rng, says, **fields, Animal=fields["Thing"])
        result.append((as_typed(rng, question), reply))
    return result
