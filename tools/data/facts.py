"""Small made-up facts to plant in a text, each with a question about it and the answer.

Every kind takes a random.Random and words already taken, so that no two facts of one document
contradict each other.
"""

from dataclasses import dataclass

CITIES = (
    "Oslo Lima Cairo Perth Quito Dakar Turin Malmo Porto Osaka Delhi Minsk Tunis Hanoi Accra Sofia Leeds Basel Ghent "
    "Busan Davos Nairobi Havana Bogota Lisbon Dublin Madrid Vienna Prague Warsaw Athens Ankara Riga Tallinn Vilnius "
    "Geneva Zurich Munich Hamburg Bremen Cologne Seville Granada Naples Palermo Bologna Verona Nantes Lyon Calais "
    "Rouen Bergen Aarhus Odense Turku Tampere Kyoto Nagoya Sapporo Manila Jakarta Colombo Karachi Lahore Tehran "
    "Baghdad Amman Muscat Doha Kampala Lusaka Harare Maputo Luanda Windhoek Montreal Toronto Calgary Denver Austin "
    "Boston Seattle Chicago Memphis Tucson Omaha Tampa Mobile Fresno"
).split()
NAMES = (
    "Anna Peter Maria Thomas Julia Martin Laura Daniel Sophie Henry Clara Oscar Nina Victor Emma George Alice Robert "
    "Helen Walter Irene Samuel Ruth Edgar Diana Felix Vera Hugo Lydia Simon Paula Frank Greta Arthur Monica Leon "
    "Esther Carl Judith Bruno Agnes Conrad Sylvia Norman Teresa Gilbert Marion Eric Naomi Ralph Cora Jonas Petra "
    "Louis Wanda Adrian Bella Magnus Flora Rupert"
).split()
SURNAMES = (
    "Baker Carter Dawson Ellis Fisher Grant Hughes Ingram Jensen Keller Larsen Mercer Norton Olsen Parker Quinn "
    "Rhodes Sutton Turner Vance Walsh Young Abbott Bishop Coleman Drake Emerson Foster Gibson Harper Lambert Moss "
    "Nolan Osborne Pratt Reeves Shaw Thorne Webb Whitaker"
).split()
COLOURS = "red blue green yellow purple orange brown black white grey pink silver golden crimson turquoise".split()
ANIMALS = "dog cat parrot horse rabbit goat hamster tortoise canary donkey ferret pony".split()
PETS = "Biscuit Pepper Shadow Ginger Domino Pickles Rusty Misty Clover Bandit Marble Juniper Waffle Comet".split()
JOBS = (
    "baker carpenter dentist engineer farmer gardener judge librarian mechanic nurse optician painter pilot plumber "
    "surgeon tailor teacher translator welder architect chemist geologist"
).split()
THINGS = (
    "lantern kettle compass umbrella violin ladder basket hammer telescope candle mirror blanket anchor saddle "
    "trumpet wheel bucket clock vase shovel camera helmet piano suitcase"
).split()
PLACES = (
    "the cellar|the attic|the garden shed|the library|the boat house|the kitchen drawer|the old church|the top shelf|"
    "the green cabinet|the school hall|the bakery|the town museum|the harbour office"
).split("|")
MEETINGS = (
    "the library|the boat house|the old church|the railway station|the school hall|the bakery|the town museum|"
    "the harbour office|the main gate|the fountain|the market square|the courthouse"
).split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
FOODS = "mushroom soup|apple pie|rye bread|lentils|plum cake|grilled trout|noodles|pancakes|olives|rice pudding".split(
    "|"
)
CONSONANTS, VOWELS = "bcdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Fact:
    statement: str  # a sentence
    question: str
    short: str  # the answer alone
    full: str  # a sentence that holds it


def fresh(rng, words, taken):
    """A word not taken yet, which it now is; a made-up one once all are."""
    free = [word for word in words if word not in taken]
    word = rng.choice(free) if free else made_up(rng).capitalize()
    taken.add(word)
    return word


def made_up(rng):
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 4)))


def number(rng, digits=None):
    digits = digits or rng.choice((3, 4, 5, 5, 5, 6, 7))
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def code(rng):
    """A password: letters and digits, or two made-up words."""
    if rng.random() < 0.5:
        alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789"
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(5, 10)))
    return f"{made_up(rng)}-{made_up(rng)}-{rng.randrange(10, 100)}"


def secret_number(rng, taken):
    city, value = fresh(rng, CITIES, taken), number(rng)
    word = rng.choice(("secret", "magic", "special", "lucky"))
    return Fact(
        f"The {word} number of {city} is {value}.",
        f"What is the {word} number of {city}?",
        value,
        f"The {word} number of {city} is {value}.",
    )


def password(rng, taken):
    what = fresh(rng, ("the archive", "the blue door", "the server", "the safe", "the radio", "the vault"), taken)
    value = code(rng)
    word = rng.choice(("password", "pass phrase", "access code"))
    return Fact(f"The {word} for {what} is {value}.", f"What is the {word} for {what}?", value, f"It is {value}.")


def appointment(rng, taken):
    name, day, place = fresh(rng, NAMES, taken), rng.choice(DAYS), rng.choice(MEETINGS)
    time = f"{rng.randint(1, 12)}:{rng.choice(('00', '15', '30', '45', '10', '50'))}"
    asked = rng.randrange(3)
    question = (
        f"On which day does {name} meet the visitors?",
        f"At what time does {name} meet the visitors?",
        f"Where does {name} meet the visitors?",
    )[asked]
    short = (day, time, place)[asked]
    return Fact(
        f"{name} meets the visitors on {day} at {time}, at {place}.",
        question,
        short,
        f"{name} meets the visitors {('on', 'at', 'at')[asked]} {short}.",
    )


def person(rng, taken):
    first, last = fresh(rng, NAMES, taken), rng.choice(SURNAMES)
    choice = rng.randrange(4)
    if choice == 0:
        job = rng.choice(JOBS)
        return Fact(
            f"{first} {last} works as a {job}." if job[0] not in "aeo" else f"{first} {last} works as an {job}.",
            f"What is the profession of {first} {last}?",
            job,
            f"{first} {last} is {'an' if job[0] in 'aeo' else 'a'} {job}.",
        )
    if choice == 1:
        animal, pet = rng.choice(ANIMALS), rng.choice(PETS)
        return Fact(
            f"{first} {last} has a {animal} called {pet}.",
            f"What is the name of {first} {last}'s {animal}?",
            pet,
            f"The {animal} is called {pet}.",
        )
    if choice == 2:
        city = rng.choice(CITIES)
        return Fact(
            f"{first} {last} was born in {city}.",
            f"Where was {first} {last} born?",
            city,
            f"{first} {last} was born in {city}.",
        )
    food = rng.choice(FOODS)
    return Fact(
        f"The favourite dish of {first} {last} is {food}.",
        f"What is the favourite dish of {first} {last}?",
        food,
        f"It is {food}.",
    )


def hidden_thing(rng, taken):
    thing, colour, place = fresh(rng, THINGS, taken), rng.choice(COLOURS), rng.choice(PLACES)
    if rng.random() < 0.5:
        return Fact(
            f"The {colour} {thing} is kept in {place}.".replace("in the top", "on the top"),
            f"Where is the {colour} {thing} kept?",
            place,
            f"It is kept in {place}.".replace("in the top", "on the top"),
        )
    return Fact(
        f"Remember that the {thing} in {place} is {colour}.",
        f"Which colour has the {thing}?",
        colour,
        f"The {thing} is {colour}.",
    )


def phone(rng, taken):
    name = f"{fresh(rng, NAMES, taken)} {rng.choice(SURNAMES)}"
    value = f"{number(rng, 3)}-{number(rng, 4)}"
    return Fact(
        f"The telephone number of {name} is {value}.",
        f"What is the telephone number of {name}?",
        value,
        f"The number is {value}.",
    )


def key_values(rng, taken):
    """A list of keys with values, one of which is asked for."""
    style = rng.choice(("{}: {}", "{} = {}", "- {}: {}", "{} -> {}", '"{}": "{}"'))
    rows = []
    for _ in range(rng.randint(3, 12)):
        key = fresh(rng, [made_up(rng)], taken)
        rows.append((key, rng.choice((number, code, lambda r: r.choice(THINGS)))(rng)))
    key, value = rng.choice(rows)
    lines = "\n".join(style.format(*row) for row in rows)
    return Fact(f"\n{lines}\n", f"Which value belongs to the key {key}?", value, f"{key} has the value {value}.")


def price(rng, taken):
    thing, value = fresh(rng, THINGS, taken), f"{rng.randint(2, 980)}.{rng.choice(('50', '99', '20', '75'))}"
    return Fact(
        f"The price of the {thing} is {value} crowns.",
        f"What is the price of the {thing}?",
        f"{value} crowns",
        f"The {thing} costs {value} crowns.",
    )


KINDS = (
    (secret_number, 4),
    (password, 2),
    (appointment, 2),
    (person, 4),
    (hidden_thing, 2),
    (phone, 1),
    (key_values, 2),
    (price, 1),
)


def draw(rng, count):
    """`count` facts that do not contradict each other; in one case of three all of one kind."""
    kinds, weights = zip(*KINDS)
    if rng.random() < 0.33:
        kinds, weights = [rng.choices(kinds, weights)[0]], [1]
    taken = set()
    return [rng.choices(kinds, weights)[0](rng, taken) for _ in range(count)]
