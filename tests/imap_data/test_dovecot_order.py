"""SORT, THREAD, and SEARCH by addresses, of messages drawn from a seed, compared with those of Debian's Dovecot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected, services
from tests.imap.drawn_mails import mails
from tests.imap_data.dovecot import needs_dovecot, said_by_dovecot
from tests.one_node import one_node

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
