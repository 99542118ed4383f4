"""Delayed repeats: [A | filler | instruction | A], so that late queries need an early passage whole."""

PARTS = (
    ("Passage to remember:\n\n{}\n\nEnd of the passage.", "Repeat the passage to remember, word for word.\n\n"),
    ("Here is a text:\n\n{}", "Write the first text once more, exactly as it stood.\n\n"),
    ("[begin of A]\n{}\n[end of A]", "Copy A.\n\n"),
    ("{}", "Now the whole from the beginning, once more:\n\n"),
    ("First read this.\n\n{}", "Say again what came first.\n\n"),
    ("Text 1\n\n{}", "Text 1 again:\n\n"),
)
BETWEEN = ("\n\nSomething else:\n\n", "\n\n* * *\n\n", "\n\nText 2\n\n", "\n\nNow read on.\n\n", "\n\n")
ASK = (
    "Please repeat the first text word for word.",
    "Write down again, exactly, the text that I gave you first.",
    "Can you reproduce the first passage without any change?",
    "Recite the opening passage once more, complete.",
)
TAKEN = ("Noted.", "I have it.", "All right.", "I shall remember it.")


def other_text(rng, pool, passage, room):
    """Filler that holds no end of the passage; none if there is no other."""
    for _ in range(8):
        filler = pool.text(rng, rng.randint(room // 3, room))
        if passage[:100] not in filler and passage[-100:] not in filler and filler[:100] not in passage:
            return filler
    return ""


def document(rng, pool, characters):
    """(messages, None) or (None, text); the passage has 1,000 to 6,000 characters, twice."""
    passage = pool.text(rng, rng.randint(1000, max(1001, min(6000, characters * 2 // 5))))
    room = max(0, characters - 2 * len(passage))
    filler = other_text(rng, pool, passage, room) if room > 400 else ""
    if rng.random() < 0.5:
        before, instruction = rng.choice(PARTS)
        between = rng.choice(BETWEEN)
        middle = between + filler if filler else ""
        return None, before.format(passage) + middle + "\n\n" + instruction + passage + "\n"
    messages = [
        {"role": "user", "content": "Remember this text:\n\n" + passage},
        {"role": "assistant", "content": rng.choice(TAKEN)},
    ]
    if filler:
        messages += [
            {"role": "user", "content": "Now read this:\n\n" + filler},
            {"role": "assistant", "content": rng.choice(TAKEN)},
        ]
    messages += [{"role": "user", "content": rng.choice(ASK)}, {"role": "assistant", "content": passage}]
    return messages, None
