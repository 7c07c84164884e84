"""Save dates of messages, as clients see them (RFC 8514)."""

from __future__ import annotations

import datetime as dt

import pytest

from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected
from tests.one_node import HookedMail
from tests.store.harness import without_histories

DAY_MS = 86_400_000
OLD_MS = 1_000_000_000_000  # 9 September 2001


def date_of(ms: int) -> str:
    return f"{dt.datetime.fromtimestamp(ms // 1000, dt.UTC):%d-%b-%Y}"


async def test_messages_have_the_date_when_they_came_into_their_mailbox(served: ImapServices, mail: HookedMail) -> None:
    began_ms = served.clock_ms()
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"\r\n", received_ms=OLD_MS))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run("CREATE Work"))[-1].startswith("t OK")
        for command in ("COPY 1 Work", "MOVE 1 Work"):
            assert (await client.run(command))[-1].startswith("t OK")
        assert (await client.run("SELECT Work"))[-1].startswith("t OK")
        told = await client.run("FETCH 1:2 (SAVEDATE INTERNALDATE)")
        view = await mail.open_mailbox(await mail.folder("alice", "Work"))
        dates = [one.saved_ms for one in view.messages.values() if one.saved_ms is not None]
        assert len(dates) == 2
        assert min(dates) >= began_ms
        for number, (line, saved_ms) in enumerate(zip(told[:2], dates, strict=True), start=1):
            saved = f"{dt.datetime.fromtimestamp(saved_ms // 1000, dt.UTC):%e-%b-%Y %H:%M:%S} +0000"
            assert line == f'* {number} FETCH (SAVEDATE "{saved}" INTERNALDATE " 9-Sep-2001 01:46:40 +0000")'
        first, last = (date_of(saved_ms) for saved_ms in (min(dates), max(dates)))
        next_day = date_of(max(dates) + DAY_MS)
        for keys, found in (
            (f"SAVEDSINCE {first}", "1 2"),
            (f"SAVEDSINCE {next_day}", ""),
            (f"SAVEDBEFORE {next_day}", "1 2"),
            (f"SAVEDBEFORE {first}", ""),
            (f"OR SAVEDON {first} SAVEDON {last}", "1 2"),
            ("SAVEDON 9-Sep-2001", ""),
            ("SAVEDATESUPPORTED", "1 2"),
            ("NOT SAVEDATESUPPORTED", ""),
        ):
            assert (await client.run(f"SEARCH {keys}"))[0].split() == ["*", "SEARCH", *found.split()], keys


async def test_messages_of_earlier_versions_have_none_and_are_found_by_their_internal_date(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 8514 sections 4.2 and 4.3."""
    inbox = await mail.folder("alice", "INBOX")
    with without_histories(monkeypatch):
        await mail.save(inbox, NewMessage(b"\r\n", received_ms=OLD_MS))
    await mail.save(inbox, NewMessage(b"\r\n", received_ms=OLD_MS))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run("FETCH 1 (UID SAVEDATE)"))[0] == "* 1 FETCH (UID 1 SAVEDATE NIL)"
        for keys, found in (
            ("SAVEDON 9-Sep-2001", "1"),
            ("SAVEDBEFORE 10-Sep-2001", "1"),
            ("SAVEDSINCE 10-Sep-2001", "2"),
            ("SAVEDATESUPPORTED", "1 2"),
        ):
            assert (await client.run(f"SEARCH {keys}"))[0].split() == ["*", "SEARCH", *found.split()], keys
