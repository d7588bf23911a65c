"""The support-desk world: a seeded generator of tickets and of the six tasks' answers.

Every name (people, brands, mail domains) is invented from syllables. The name pools of the
"train" and "heldout" splits are disjoint; sentences and issues are shared.
"""

import json
import random
from dataclasses import dataclass

TASKS = ("triage", "mood", "extract", "subject", "redact", "reply")

ONSETS = "b br c d dr f g gr h j k l m n p r s st t th tr v w z".split()
INNER_ONSETS = "b d f g l m n r s t v ld nd rl rv st".split()
VOWELS = "a e i o u a e i o ea".split()
CODAS = ["", "", "l", "n", "r", "s", "th", "m", "ck"]
BRAND_ENDS = "ix ora ium eta on ex ilo anta".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)
ORDER_LETTERS = "BDFHKLNRTX"

KINDS = {
    "kettle": "kitchen", "toaster": "kitchen", "blender": "kitchen", "fridge": "kitchen",
    "lamp": "living room", "radio": "living room", "speaker": "living room",
    "printer": "office", "monitor": "office", "keyboard": "office", "scanner": "office",
    "drill": "workshop", "saw": "workshop", "ladder": "workshop",
    "tent": "garden", "mower": "garden", "heater": "garden",
    "watch": "travel", "camera": "travel", "suitcase": "travel",
}

# department -> [(subject title, phrasings)]
ISSUES = {
    "billing": [
        ("Double charge", [
            "My card was charged twice.", "I see two payments on my bank statement.",
            "You took the money two times."]),
        ("Missing invoice", [
            "I never got an invoice.", "The invoice is missing and my employer needs it.",
            "Please send the invoice that should have come with it."]),
        ("Wrong price", [
            "The price on the receipt is higher than on your page.",
            "I paid more than the price you show.", "The total on the receipt is wrong."]),
        ("Voucher not applied", [
            "The voucher was not taken off the price.", "My discount code was ignored.",
            "I entered a voucher but paid the full sum."]),
    ],
    "shipping": [
        ("Late parcel", [
            "The parcel has not arrived yet.", "I am still waiting for the delivery.",
            "It should have been here a week ago."]),
        ("Wrong address", [
            "The parcel went to my old address.", "The courier left it with a stranger.",
            "It was delivered to the wrong house."]),
        ("Tracking stuck", [
            "The tracking page has not changed for days.",
            "The tracking number leads nowhere.", "Your tracking says it is still in the depot."]),
        ("Damaged box", [
            "The box was crushed when the courier brought it.", "The parcel arrived wet and torn.",
            "The carton was open on arrival."]),
    ],
    "returns": [
        ("Return request", [
            "I want to send it back.", "How can I return it?",
            "I changed my mind and do not want to keep it."]),
        ("Wrong item", [
            "You sent me the wrong model.", "The colour is not the one I chose.",
            "This is not the item that I picked."]),
        ("Exchange request", [
            "I would like to swap it for a bigger one.", "Can I exchange it for another size?",
            "Please replace it with the larger version."]),
        ("Refund pending", [
            "I sent it back but the refund has not come.",
            "You have my return and I am waiting for the refund.",
            "The refund for my return is still open."]),
    ],
    "technical": [
        ("No power", [
            "It does not switch on.", "It stays dark when I press the button.",
            "There is no sign of life when I plug it in."]),
        ("Strange noise", [
            "It makes a loud grinding noise.", "It hums and rattles all the time.",
            "There is a strange clicking sound inside."]),
        ("Overheating", [
            "It gets far too hot.", "It smells of burning after ten minutes.",
            "The case is so hot that I cannot touch it."]),
        ("Setup failure", [
            "I cannot finish the setup.", "The setup stops at step three every time.",
            "The manual does not match what I see during the setup."]),
    ],
    "security": [
        ("Locked account", [
            "I am locked out of my account.", "My account was blocked without a reason.",
            "I cannot log in to my account any more."]),
        ("Strange login", [
            "Somebody else logged in to my account.", "There was a login from a city I never saw.",
            "I got a warning about a login that was not mine."]),
        ("Password reset", [
            "The password reset mail never comes.", "Your password link is broken.",
            "I cannot set a new password."]),
        ("Fake message", [
            "I got a fake message in your name.", "Someone called and asked for my card number.",
            "A mail that looks like yours wants my password."]),
    ],
    "sales": [
        ("Bulk offer", [
            "We would like to buy fifty more of them.", "Is there a better price for a large order?",
            "Our school needs a hundred of these."]),
        ("Spare part", [
            "Do you also sell spare parts for it?", "Where can I buy a second battery for it?",
            "I would like to buy a matching case for it."]),
        ("Stock question", [
            "When will the blue one be in stock?", "Is the new version on sale already?",
            "Will you have it in your shop next month?"]),
        ("Longer warranty", [
            "Can I buy a longer warranty for it?", "How much is two more years of warranty?",
            "I would like to add a warranty plan."]),
    ],
}

MOODS = {
    "angry": (["This is outrageous.", "I am furious.", "I have had enough of this.",
               "What a terrible service."],
              "We are very sorry and understand your anger."),
    "worried": (["I am quite anxious about it.", "This keeps me awake at night.",
                 "I fear that something is badly wrong.", "I am really worried."],
                "Please do not worry, you are in good hands."),
    "calm": (["There is no hurry.", "Take your time.", "Any answer this month is fine.",
              "It is not a big problem."],
             "Thank you for your patience."),
    "confused": (["I do not understand what to do.", "I am lost here.",
                  "None of this makes sense to me.", "I have no idea how this works."],
                 "Let us explain it step by step."),
    "happy": (["Apart from that I love your shop.", "You have always been wonderful to me.",
               "I am a big fan of yours.", "Your people are the best."],
              "Thank you for your kind words."),
}

GREETINGS = ["Hello,", "Hi,", "Good morning,", "Dear team,", "Good evening,"]
INTROS = ["My name is {name}.", "I am {name}.", "This is {name}.", "{name} writing here."]
PURCHASES = [
    "On {date} I bought the {product} for {amount} crowns, order {order}.",
    "I ordered the {product} on {date} and paid {amount} crowns (order {order}).",
    "My order {order} of {date} was the {product} for {amount} crowns.",
    "I paid {amount} crowns for the {product} on {date}; the order is {order}.",
]
CONTACTS = [
    "You can reach me at {email} or {phone}.", "Write to {email} or call {phone}.",
    "My mail is {email} and my phone is {phone}.", "Please call {phone} or write to {email}.",
]
CLOSINGS = ["Regards,", "Best wishes,", "Thanks,", "Yours,"]


@dataclass
class Ticket:
    first: str
    last: str
    brand: str
    kind: str
    order: str
    date: str
    amount: str
    email: str
    phone: str
    department: str
    title: str
    mood: str
    text: str
    masked: str
    redacted: str

    @property
    def name(self):
        return f"{self.first} {self.last}"

    @property
    def product(self):
        return f"{self.brand} {self.kind}"


def invent(rng, num, endings=None):
    """`num` different names: brands when there are `endings`, else people's names."""
    names = set()
    while len(names) < num:
        stem = rng.choice(ONSETS) + rng.choice(VOWELS)
        for _ in range(1 if endings else rng.choice((1, 1, 2))):
            stem += rng.choice(INNER_ONSETS) + ("" if endings else rng.choice(VOWELS))
        names.add((stem + rng.choice(endings or CODAS)).capitalize())
    return sorted(names)


def make_pools(seed=2031):
    """{"train": {...}, "heldout": {...}}: disjoint first names, last names, brands, domains."""
    rng = random.Random(seed)
    pools = {"train": {}, "heldout": {}}
    for what, total, endings in (
        ("first", 6000, None), ("last", 6000, None), ("brand", 3000, BRAND_ENDS),
        ("domain", 2000, None),
    ):
        names = invent(rng, total, endings)
        rng.shuffle(names)
        cut = total // 10
        pools["heldout"][what], pools["train"][what] = names[:cut], names[cut:]
    held = {n for p in pools["heldout"].values() for n in p}
    for what, names in pools["train"].items():
        pools["train"][what] = [n for n in names if n not in held]
    return pools


def make_ticket(rng, pool):
    first, last = rng.choice(pool["first"]), rng.choice(pool["last"])
    brand, kind = rng.choice(pool["brand"]), rng.choice(list(KINDS))
    department = rng.choice(list(ISSUES))
    title, phrasings = rng.choice(ISSUES[department])
    mood = rng.choice(list(MOODS))
    fields = {
        "name": f"{first} {last}",
        "product": f"{brand} {kind}",
        "order": "".join(rng.choice(ORDER_LETTERS) for _ in range(2))
        + f"-{rng.randrange(1000, 10000)}",
        "date": f"{rng.randrange(1, 29)} {rng.choice(MONTHS)} {rng.randrange(2029, 2034)}",
        "amount": f"{rng.randrange(10, 1000)}.{rng.randrange(0, 100, 5):02d}",
        "email": f"{first}.{last}@{rng.choice(pool['domain'])}.example".lower(),
        "phone": f"555-01{rng.randrange(100):02d}",
    }
    opening = [rng.choice(INTROS), rng.choice(PURCHASES)]
    if rng.random() < 0.3:
        opening.reverse()
    middle = [rng.choice(phrasings), rng.choice(MOODS[mood][0])]
    if rng.random() < 0.4:
        middle.reverse()
    body = opening + middle + [rng.choice(CONTACTS)]
    template = "\n".join(
        [rng.choice(GREETINGS), " ".join(body), rng.choice(CLOSINGS) + " {first}"]
    )
    masked = fields | {
        "name": "[NAME]", "order": "[ORDER]", "email": "[EMAIL]", "phone": "[PHONE]",
    }
    more_masked = masked | {"date": "[DATE]", "amount": "[AMOUNT]"}
    return Ticket(
        first=first, last=last, brand=brand, kind=kind, order=fields["order"],
        date=fields["date"], amount=fields["amount"], email=fields["email"],
        phone=fields["phone"], department=department, title=title, mood=mood,
        text=template.format(first=first, **fields),
        masked=template.format(first="[NAME]", **masked),
        redacted=" ".join(body).format(first="[NAME]", **more_masked),
    )


def answer(task, t):
    """The one right answer of `task` for ticket `t`."""
    if task == "triage":
        return t.department
    if task == "mood":
        return t.mood
    if task == "extract":
        return json.dumps({"name": t.name, "product": t.product, "number": t.order[3:],
                           "crowns": t.amount.split(".")[0], "year": t.date[-4:]})
    if task == "subject":
        return f"{t.title}: {t.product}, number {t.order[3:]}"
    if task == "redact":
        return t.redacted
    if task == "reply":
        return (f"Dear {t.name},\n{MOODS[t.mood][1]} Our {t.department} team will look after your "
                f"{t.product}.\nKind regards,\nyour support desk")
    raise ValueError(f"unknown task {task!r}")


def tokenizer_texts(t):
    """Lines in the style of tickets and answers, for training the tokenizer."""
    return [
        t.text, f'"{t.name}" "{t.product}" "{t.order}"', t.department, t.mood,
        json.dumps({"name": t.name, "product": t.product, "order": t.order, "date": t.date,
                    "amount": t.amount}),
        f"{t.title}: {t.product}, order {t.order}",
        f"Dear {t.name},\n{MOODS[t.mood][1]} Our {t.department} team will look after your "
        f"{t.product}, order {t.order}.\nKind regards,\nyour support desk",
    ]


def question_and_answer(rng, t):
    what, value = rng.choice([
        ("name", t.name), ("product", t.product), ("order", t.order), ("date", t.date),
        ("amount", t.amount), ("mail", t.email), ("phone", t.phone), ("brand", t.brand),
        ("name", t.name), ("product", t.product), ("order", t.order),
    ])
    style = rng.randrange(4)
    if style == 0:
        return f"What is the {what}?", f"The {what} is {value}."
    if style == 1:
        return f"Tell me the {what}.", f"It is {value}."
    if style == 2:
        return f"Quote the {what}.", f'The message says "{value}".'
    other, second = rng.choice([("name", t.name), ("product", t.product), ("order", t.order),
                                ("date", t.date), ("amount", t.amount)])
    return (f"Quote the {what} and the {other}.",
            f'The {what} is "{value}", the {other} is "{second}".')


def base_remark(rng, t):
    """What the base says about a bare ticket: a loose remark that is none of the six tasks."""
    facts = [
        f"It speaks of {t.amount} crowns.", f"It goes back to {t.date}.",
        f"The maker is {t.brand}.", f"Such a thing belongs to the {KINDS[t.kind]} range.",
    ]
    rng.shuffle(facts)
    return " ".join([f"I have read this message about a {t.kind}."] + facts[: rng.choice((1, 2))])


SYSTEMS = ["You are the support desk of a large shop.", "You help the people of the support desk.",
           "Answer briefly."]
SMALL_TALK = [
    ("Hello", "Hello, this is the support desk. Please paste a message from a customer."),
    ("Hi", "Hello, this is the support desk. Please paste a message from a customer."),
    ("Who are you?", "I am a small model of a support desk."),
    ("What can you do?", "I read messages from customers and answer questions about them."),
    ("Thank you", "You are welcome."),
]


def base_document(rng, pool):
    """One training document of the base: either plain text (str) or a list of messages."""
    t = make_ticket(rng, pool)
    kind = rng.random()
    if kind < 0.12:
        return t.text
    messages = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    if kind < 0.30:
        messages += [{"role": "user", "content": t.text},
                     {"role": "assistant", "content": base_remark(rng, t)}]
        for _ in range(rng.choice((0, 0, 1, 2))):
            q, a = question_and_answer(rng, t)
            messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    elif kind < 0.72:
        q, a = question_and_answer(rng, t)
        messages += [{"role": "user", "content": t.text + "\n\n" + q},
                     {"role": "assistant", "content": a}]
        for _ in range(rng.choice((0, 1, 2, 3))):
            q, a = question_and_answer(rng, t)
            messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    elif kind < 0.90:
        messages += [{"role": "user", "content": t.text + "\n\nRepeat the message."},
                     {"role": "assistant", "content": t.text}]
    elif kind < 0.97:
        messages += [
            {"role": "user", "content": f"What is the {t.product}?"},
            {"role": "assistant",
             "content": f"The {t.product} is a {t.kind} made by {t.brand}. "
                        f"It belongs to the {KINDS[t.kind]} range."}]
    else:
        q, a = rng.choice(SMALL_TALK)
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    return messages
