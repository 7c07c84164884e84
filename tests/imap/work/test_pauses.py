"""Commands on much mail or many folders pause often, so that others are served meanwhile."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import trio

from protocol.values import UidSet
from replicator.imap import selection
from replicator.imap.handlers import resync
from replicator.imap.handlers.messages.fetch_summaries import VALUES_AT_ONCE
from replicator.imap.matching.phases import STEP_WORK
from replicator.imap.rendering import outline
from replicator.imap.rendering.outline import OUTLINER, Outline, Teller
from replicator.imap.services import ImapServices
from replicator.imap.wire.fetch_items import FetchItem
from replicator.mail.mailstore import Folder
from replicator.mime.skeleton import Skeleton
from replicator.store.bodies.outline_rows import write_outlines
from tests.imap.client import connected, fill
from tests.imap.turns import counting_turns
from tests.one_node import HookedMail


@pytest.mark.parametrize(
    "command",
    [
        'LIST "" "*nothing"',
        'LIST "" "%"',
        'LIST (SUBSCRIBED RECURSIVEMATCH) "" "*nothing"',
        'LSUB "" "*nothing"',
    ],
)
async def test_list_pauses_between_folders(served: ImapServices, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    names = [f"folder {number}" for number in range(3000)]

    async def folders(user: str) -> list[Folder]:
        await trio.lowlevel.checkpoint()
        return [Folder(user, name, b"", 1) for name in names]

    async def subscriptions(_user: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        return names

    monkeypatch.setattr(served.mail, "folders", folders)
    monkeypatch.setattr(served.mail, "subscriptions", subscriptions)
    async with connected(served) as client, counting_turns() as turns:
        await client.log_in("alice")
        before = turns.count
        assert (await client.run(command))[-1] == "t OK Folders listed"
        assert turns.count - before > 2 * len(names) / 20


async def test_select_pauses_and_tells_what_changes_meanwhile(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "NUMBERED_AT_ONCE", 10)
    inbox = await fill(mail, messages=300)
    view = await mail.open_mailbox(inbox)
    async with connected(served) as client, counting_turns() as turns:
        await client.log_in("alice")

        async def change() -> None:
            await mail.expunge(view, UidSet.of([1, 200]))
            await fill(mail, messages=1)

        before = turns.count
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            told = await client.run("SELECT INBOX")
        assert turns.count - before > 300 // 10
        count = 0
        for line in told + await client.run("NOOP"):
            if exists := re.fullmatch(r"\* (\d+) EXISTS", line):
                count = int(exists[1])
            elif re.fullmatch(r"\* \d+ EXPUNGE", line):
                count -= 1
        assert count == len(view.messages) == 299
        assert await client.run("SEARCH UID 2,199:201,301") == ["* SEARCH 1 198 199 299", "t OK Searched"]


async def test_update_of_a_cache_pauses(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LOOKED_AT_ONCE", "TOLD_AT_ONCE", "COMPARED_AT_ONCE"):
        monkeypatch.setattr(resync, limit, 10)
    view = await mail.open_mailbox(await fill(mail, messages=300))
    await mail.expunge(view, UidSet.of(range(2, 301, 2)))
    async with connected(served) as client, counting_turns() as turns:
        await client.log_in("alice")
        await client.run("ENABLE QRESYNC")
        before = turns.count
        told = await client.run(f"SELECT INBOX (QRESYNC ({view.uidvalidity} 100))")
        assert turns.count - before > 150 // 10 + 150 // 10 + 100 // 10
        gone = [line.removeprefix("* VANISHED (EARLIER) ").split(",") for line in told if "VANISHED" in line]
        assert [int(uid) for some in gone for uid in some] == [*range(2, 301, 2)]
        assert sum("FETCH" in line for line in told) == 100


@pytest.mark.parametrize("gone", [[], [1], [10], [5, 33, 60], [*range(11, 21)], [9, 10, 11, 60]])
async def test_cache_learns_of_each_gap_between_the_pauses(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, gone: list[int]
) -> None:
    monkeypatch.setattr(resync, "COMPARED_AT_ONCE", 10)
    view = await mail.open_mailbox(await fill(mail, messages=60))
    await mail.expunge(view, UidSet.of(gone))
    async with connected(served) as client:
        await client.log_in("alice")
        await client.run("ENABLE QRESYNC")
        told = await client.run(f"SELECT INBOX (QRESYNC ({view.uidvalidity} 60))")
        vanished = [line.removeprefix("* VANISHED (EARLIER) ") for line in told if "VANISHED" in line]
        ends = [part.split(":") for some in vanished for part in some.split(",")]
        assert [uid for some in ends for uid in range(int(some[0]), int(some[-1]) + 1)] == gone


async def test_search_of_many_keys_pauses_between_messages(served: ImapServices, mail: HookedMail) -> None:
    await fill(mail, messages=300)
    keys = " ".join(f"SMALLER {1000 + number}" for number in range(400))
    async with connected(served) as client, counting_turns() as turns:
        await client.log_in("alice", "INBOX")
        before = turns.count
        found, answer = await client.run(f"SEARCH {keys}")
        assert answer == "t OK Searched"
        assert len(found.split()) == 2 + 300
        assert turns.count - before >= 300 * 400 // STEP_WORK


async def test_fetch_of_many_items_by_outlines_pauses_between_messages(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, items = 150, 90
    view = await mail.open_mailbox(await fill(mail, messages, b"Subject: x\r\n\r\n"))
    made = {view.messages[1].content_hash: OUTLINER.outline(Skeleton(b"Subject: x\r\n\r\n"))}
    await mail.store.write(lambda tx: write_outlines(tx.connection, made, OUTLINER.version))
    wanted = " ".join(f"BODY.PEEK[HEADER.FIELDS (Subject X-{number})]" for number in range(items))
    teller, values = outline.teller, Counter[int]()
    async with connected(served) as client, counting_turns() as turns:

        def counting(item: FetchItem) -> Teller:
            tell = teller(item)

            def counted(told: Outline) -> bytes | None:
                values[turns.count] += 1
                return tell(told)

            return counted

        monkeypatch.setattr(outline, "teller", counting)
        await client.log_in("alice", "INBOX")
        await client.send(f"t FETCH 1:* ({wanted})\r\n")
        assert (await client.octets()).count(b"Subject: x") == messages * items
    assert values.total() == messages * items
    assert max(values.values()) <= VALUES_AT_ONCE
