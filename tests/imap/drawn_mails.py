"""Mails drawn from a seed, to be sorted and threaded: replies, forwards, lists, encoded words, equal values."""

from __future__ import annotations

import datetime as dt
import random

MESSAGES = 100
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
PREFIXES = ["", "", "", "Re: ", "RE : ", "Fwd: ", "fw: ", "[list] ", "Re: [list] ", "[list] Re: ", "re[x]: ", "Aw: "]
SUBJECTS = ["Lunch", "lunch", "Dinner", "=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "=?iso-8859-1?q?gr=FC=DFe?=", "", "[x]", "Z  z"]
SUFFIXES = ["", "", "", " (fwd)", "  ", " (FWD) (fwd)"]
NAMES = ["Ann", "ann b", '"B, Carl"', "=?utf-8?q?=C3=84nne?=", "", "Zoe"]
FORMS = ["{} <{}@x.example>", "{} <{}@x.example>", "{1}@x.example", "{1} (c) @ (d) x.example", "{} < {}@x . example >"]
LOCALS = ["ann", "BOB", "carl", "zoe", "bob.x", '"d e"']


def mails(seed: int, count: int = MESSAGES) -> list[tuple[bytes, int]]:
    """Return messages with the seconds at which they were received."""
    draw = random.Random(seed)
    return [(_written(draw, number, count), 1_700_000_000 + draw.randrange(100)) for number in range(count)]


def _written(draw: random.Random, number: int, count: int) -> bytes:
    sent = BEGIN + dt.timedelta(minutes=draw.randrange(10**5))
    zone = dt.timezone(dt.timedelta(hours=draw.randrange(-11, 13)))
    fields = [f"Message-ID: <{number}@x.example>"] if draw.random() < 0.9 else []
    fields += [f"Date: {sent.astimezone(zone):%d %b %Y %H:%M:%S %z}"] if draw.random() < 0.9 else []
    fields.append(f"Subject: {draw.choice(PREFIXES)}{draw.choice(SUBJECTS)}{draw.choice(SUFFIXES)}")
    for name in ("From", "To", "Cc"):
        addresses = [
            draw.choice(FORMS).format(draw.choice(NAMES), draw.choice(LOCALS)) for _ in range(draw.randrange(2))
        ]
        fields += [f"{name}: {', '.join(addresses)}"] if addresses else []
    references = " ".join(f"<{draw.randrange(count + 20)}@x.example>" for _ in range(draw.choice([0, 0, 1, 1, 2, 3])))
    fields += [f"{draw.choice(['References', 'References', 'In-Reply-To'])}: {references}"] if references else []
    return "\r\n".join([*fields, "", "x" * draw.randrange(500), ""]).encode()
