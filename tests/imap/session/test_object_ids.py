"""Identifiers of mailboxes, messages and conversations (RFC 8474)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from tests.imap.client import Client, connected
from tests.one_node import HookedMail

FIRST = b"Message-ID: <a@x>\r\n\r\nShall we?\r\n"
REPLY = b"Message-ID: <b@x>\r\nReferences: <a@x>\r\n\r\nYes.\r\n"
OTHER = b"Subject: other\r\n\r\nHello\r\n"


def ids(kind: str, lines: Iterable[str]) -> list[str]:
    """Return the identifiers of this kind in the answers, in their order."""
    return [found for line in lines for found in re.findall(rf"{kind} \(([A-Za-z0-9_-]{{1,255}})\)", line)]


async def mailbox_ids(client: Client, name: str) -> set[str]:
    """Return the identifiers that all commands tell of a mailbox; there is to be one."""
    commands = ["SELECT {}", "EXAMINE {}", "STATUS {} (MAILBOXID)", 'LIST "" {} RETURN (STATUS (MAILBOXID))']
    found = [ids("MAILBOXID", await client.run(command.format(name))) for command in commands]
    assert [len(one) for one in found] == [1] * len(commands)
    return {one for (one,) in found}


async def test_mailbox_id_is_told_by_all_commands_and_stays_through_renames(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        (created,) = ids("MAILBOXID", await client.run("CREATE work"))
        assert await mailbox_ids(client, "work") == {created}
        assert "t OK" in (await client.run("RENAME work play"))[-1]
        assert await mailbox_ids(client, "play") == {created}
        (again,) = ids("MAILBOXID", await client.run("CREATE work"))
        assert await mailbox_ids(client, "work") == {again} != {created}
        assert "t OK" in (await client.run("DELETE work"))[-1]
        assert ids("MAILBOXID", await client.run("CREATE work")) not in ([again], [created])


async def test_mailbox_id_goes_with_the_mail_of_a_renamed_inbox(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        (before, *_) = await client.run("STATUS INBOX (MAILBOXID UIDVALIDITY)")
        assert "t OK" in (await client.run("RENAME INBOX old"))[-1]
        (renamed, *_) = await client.run("STATUS old (MAILBOXID UIDVALIDITY)")
        (new, *_) = await client.run("STATUS INBOX (MAILBOXID UIDVALIDITY)")
    assert before.replace("INBOX", "old") == renamed
    assert not {*re.findall(r"F\w+|\d+", before)} & {*re.findall(r"F\w+|\d+", new)}


async def test_conversation_has_one_thread_id_in_all_folders(mail: HookedMail, served: ImapServices) -> None:
    for name, bodies in {"INBOX": (OTHER, FIRST), "Sent": (REPLY, OTHER)}.items():
        folder = await (mail.folder if name == "INBOX" else mail.create_folder)("alice", name)
        for body in bodies:
            await mail.save(folder, NewMessage(body))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        other, thread = ids("THREADID", await client.run("FETCH 1:* THREADID"))
        emails = ids("EMAILID", await client.run("FETCH 1:* EMAILID"))
        assert (await client.run(f"SEARCH THREADID {thread}"))[0] == "* SEARCH 2"
        assert (await client.run(f"SEARCH NOT THREADID {thread}"))[0] == "* SEARCH 1"
        assert (await client.run(f"SEARCH OR EMAILID {emails[0]} THREADID {thread}"))[0] == "* SEARCH 1 2"
        assert (await client.run(f"SEARCH THREADID {thread.upper()}"))[0] == "* SEARCH"
        assert "t OK" in (await client.run("COPY 1 Sent"))[-1]
        assert "t OK" in (await client.run("MOVE 2 Sent"))[-1]
        await client.run("SELECT Sent")
        answer, lone, *moved = ids("THREADID", await client.run("UID FETCH 1:* (EMAILID THREADID)"))
        assert (answer, moved) == (thread, [other, thread])
        assert lone not in (other, thread), "mail without any message id is a conversation of its own"
        assert ids("EMAILID", await client.run("FETCH 3:4 EMAILID")) == emails
        assert (await client.run(f"UID SEARCH THREADID {thread}"))[0] == "* SEARCH 1 4"
        assert (await client.run(f"UID SEARCH THREADID {other}"))[0] == "* SEARCH 3"
        assert (await client.run(f"UID SEARCH EMAILID {emails[1]}"))[0] == "* SEARCH 4"
