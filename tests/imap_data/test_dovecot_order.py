"""SORT, THREAD, and SEARCH by addresses, of messages drawn from a seed, compared with those of Debian's Dovecot."""

from __future__ import annotations

import datetime as dt
import random
import re
from pathlib import Path

import pytest

from replicator.mailstore import NewMessage
from tests.imap.client import connected, services
from tests.imap_data.dovecot import needs_dovecot, said_by_dovecot
from tests.one_node import one_node

MESSAGES = 100
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
PREFIXES = ["", "", "", "Re: ", "RE : ", "Fwd: ", "fw: ", "[list] ", "Re: [list] ", "[list] Re: ", "re[x]: ", "Aw: "]
SUBJECTS = ["Lunch", "lunch", "Dinner", "=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "=?iso-8859-1?q?gr=FC=DFe?=", "", "[x]", "Z  z"]
SUFFIXES = ["", "", "", " (fwd)", "  ", " (FWD) (fwd)"]
NAMES = ["Ann", "ann b", '"B, Carl"', "=?utf-8?q?=C3=84nne?=", "", "Zoe"]
FORMS = ["{} <{}@x.example>", "{} <{}@x.example>", "{1}@x.example", "{1} (c) @ (d) x.example", "{} < {}@x . example >"]
LOCALS = ["ann", "BOB", "carl", "zoe", "bob.x", '"d e"']

COMMANDS = [
    *(f"SORT ({key}) UTF-8 ALL" for key in ("SUBJECT", "FROM", "TO", "CC", "DATE", "SIZE", "ARRIVAL")),
    *(
        f"SORT ({key}) UTF-8 ALL"
        for key in ("DISPLAYFROM", "DISPLAYTO", "REVERSE SUBJECT DATE", "REVERSE FROM REVERSE DATE")
    ),
    *(f"THREAD {algorithm} UTF-8 ALL" for algorithm in ("REFERENCES", "REFS", "ORDEREDSUBJECT")),
    *(f"UID SEARCH RETURN ({options}) FROM ann" for options in ("MIN MAX COUNT", "ALL", "")),
    *(f"SEARCH {key}" for key in ("FROM ann@x.example", "CC bob", 'TO "B, Carl"', "SUBJECT lunch", "FROM example")),
    "SORT RETURN (ALL COUNT MIN MAX) (SIZE) UTF-8 FROM ann",
    "UID SEARCH RETURN (PARTIAL 2:7 COUNT) FROM ann",
    "SORT RETURN (PARTIAL 9:4) (SUBJECT) UTF-8 ALL",
    "UID SEARCH RETURN (SAVE MIN) SUBJECT dinner",
    "UID SORT (DATE) UTF-8 $",
]


def mails(seed: int) -> list[tuple[bytes, int]]:
    """Return messages with the seconds at which they were received."""
    draw = random.Random(seed)
    return [(written(draw, number), 1_700_000_000 + draw.randrange(100)) for number in range(MESSAGES)]


def written(draw: random.Random, number: int) -> bytes:
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
    references = " ".join(
        f"<{draw.randrange(MESSAGES + 20)}@x.example>" for _ in range(draw.choice([0, 0, 1, 1, 2, 3]))
    )
    fields += [f"{draw.choice(['References', 'References', 'In-Reply-To'])}: {references}"] if references else []
    return "\r\n".join([*fields, "", "x" * draw.randrange(500), ""]).encode()


@needs_dovecot
@pytest.mark.parametrize("seed", range(2))
async def test_order_is_that_of_dovecot(tmp_path: Path, seed: int) -> None:
    drawn = mails(seed)
    async with one_node(tmp_path) as mail:
        inbox = await mail.folder("alice", "INBOX")
        for body, received_s in drawn:
            await mail.save(inbox, NewMessage(body, received_ms=1000 * received_s))
        async with connected(services(mail)) as client:
            await client.log_in("alice", "INBOX")
            ours = [line for command in COMMANDS for line in answers(await client.run(command))]
    bodies = [body for body, _ in drawn]
    said = said_by_dovecot(bodies, *COMMANDS, received_s=[received_s for _, received_s in drawn]).decode()
    theirs = answers(said.split("\r\n"))  # in their order; tagged lines come when they can
    assert len(ours) == len(theirs) == len(COMMANDS)
    assert ours == theirs


def answers(lines: list[str]) -> list[str]:
    """Return the answers to the commands, without their tags."""
    found = [line for line in lines if re.match(r"\* (SORT|THREAD|SEARCH|ESEARCH)\b", line)]
    return [re.sub(r'\(TAG "\w+"\)', "", line) for line in found]
