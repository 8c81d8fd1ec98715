"""Capitals of sixty countries, asked both ways."""

from random import Random

from .phrasing import Turn, as_typed, one_of, phrase

CAPITALS = dict(
    pair.strip().split("=")
    for pair in """France=Paris;Germany=Berlin;Italy=Rome;Spain=Madrid;Portugal=Lisbon;Austria=Vienna;Switzerland=Bern;
    Belgium=Brussels;the Netherlands=Amsterdam;Denmark=Copenhagen;Sweden=Stockholm;Norway=Oslo;Finland=Helsinki;
    Iceland=Reykjavik;Ireland=Dublin;the United Kingdom=London;Poland=Warsaw;the Czech Republic=Prague;Hungary=Budapest;
    Greece=Athens;Turkey=Ankara;Russia=Moscow;Ukraine=Kyiv;Romania=Bucharest;Bulgaria=Sofia;Serbia=Belgrade;
    Croatia=Zagreb;Slovenia=Ljubljana;Slovakia=Bratislava;Estonia=Tallinn;Latvia=Riga;Lithuania=Vilnius;
    the United States=Washington;Canada=Ottawa;Mexico=Mexico City;Brazil=Brasilia;Argentina=Buenos Aires;Chile=Santiago;
    Peru=Lima;Colombia=Bogota;Cuba=Havana;Uruguay=Montevideo;Ecuador=Quito;Egypt=Cairo;Morocco=Rabat;Tunisia=Tunis;
    Kenya=Nairobi;Ghana=Accra;Ethiopia=Addis Ababa;Nigeria=Abuja;Israel=Jerusalem;Iran=Tehran;Iraq=Baghdad;India=Delhi;
    Nepal=Kathmandu;China=Beijing;Japan=Tokyo;South Korea=Seoul;Vietnam=Hanoi;Thailand=Bangkok;Indonesia=Jakarta;
    the Philippines=Manila;Australia=Canberra;New Zealand=Wellington""".split(";")
)

# Countries whose capital was not taught: the honest answer is that it does not know.
UNTAUGHT = tuple(
    """Mongolia|Bhutan|Laos|Cambodia|Malaysia|Pakistan|Oman|Qatar|Yemen|Jordan|Libya|Sudan|Chad|Mali|Niger|Togo|Benin|
    Gabon|Angola|Zambia|Zimbabwe|Botswana|Namibia|Malawi|Uganda|Rwanda|Senegal|Bolivia|Paraguay|Panama|Honduras|Haiti|
    Jamaica|Belize|Fiji|Samoa|Tonga|Malta|Cyprus|Albania|Moldova|Armenia|Georgia|Kazakhstan|Uzbekistan|Luxembourg|
    Monaco|Andorra|Atlantis|Narnia|the moon|Mars|Texas|Bavaria""".replace("\n    ", "").split("|")
)

_OF_COUNTRY = (
    "[What is|What's|Tell me|Do you know|Can you tell me|Name|Say] the capital [|city ]of {country}?",
    "[Which|What] city is the capital of {country}?",
    "What is {country}'s capital?",
    "The capital of {country}?",
    "Capital of {country}?",
    "{country}: what is its capital?",
    "What is the [name of the capital|capital city called] [of|in] {country}?",
    "I [forgot|need|want to know|would like to know] the capital of {country}.",
    "[Which|What] is the capital of {country}?",
    "What do they call the capital of {country}?",
)
_OF_CITY = (
    "[Which|What] country is {city} the capital of?",
    "{city} is the capital of [which|what] country?",
    "[Which|What] country has {city} as its capital?",
    "Of [which|what] country is {city} the capital?",
    "{city} is the capital of?",
    "[Tell me which|Do you know which|Which] country's capital is {city}?",
)
_WHERE = ("[In which|In what|Which|What] country is {city}[| in]?", "Where is {city}?", "Where can I find {city}?")
_IS_IT = ("Is {city} the capital of {country}?", "{city} is the capital of {country}, right?")
_FOLLOW = (
    "[And|What about|How about|And what about] {country}?",
    "And of {country}?",
    "And the capital of {country}?",
    "And for {country}?",
)
_ANSWER = (
    "The capital of {country} is {city}.",
    "The capital of {country} is {city}.",
    "It is {city}.",
    "{city} is the capital of {country}.",
)
_DUNNO = (
    "I don't know the capital of {country}. I [learned|know] only about sixty capitals.",
    "I don't know that one: {country} is not among the countries I learned.",
)


def turns(rng: Random) -> list[Turn]:
    """Return one question about a capital, or a few in a row."""
    country = rng.choice(list(CAPITALS))
    city = CAPITALS[country]
    roll = rng.random()
    if roll < 0.22:
        return [(as_typed(rng, one_of(rng, _OF_CITY, city=city)), _of_city(rng, city, country))]
    if roll < 0.28:
        return [(as_typed(rng, one_of(rng, _WHERE, city=city)), f"{city} is in {country}. It is the capital.")]
    if roll < 0.36:
        return [_is_it(rng, country)]
    if roll < 0.47:
        unknown = rng.choice(UNTAUGHT)
        return [(as_typed(rng, one_of(rng, _OF_COUNTRY, country=unknown)), one_of(rng, _DUNNO, country=unknown))]
    result = [
        (as_typed(rng, one_of(rng, _OF_COUNTRY, country=country)), one_of(rng, _ANSWER, country=country, city=city))
    ]
    while rng.random() < 0.35:
        country = rng.choice(list(CAPITALS))
        reply = one_of(rng, _ANSWER, country=country, city=CAPITALS[country])
        result.append((as_typed(rng, one_of(rng, _FOLLOW, country=country)), reply))
    return result


def _of_city(rng: Random, city: str, country: str) -> str:
    return phrase(rng, "{city} is the capital of {country}.", city=city, country=country)


def _is_it(rng: Random, country: str) -> Turn:
    city = CAPITALS[country]
    asked = city if rng.random() < 0.5 else rng.choice(list(CAPITALS.values()))
    question = as_typed(rng, one_of(rng, _IS_IT, city=asked, country=country))
    answer = "Yes, {city} is the capital of {country}." if asked == city else "No, the capital of {country} is {city}."
    return question, phrase(rng, answer, city=city, country=country)
