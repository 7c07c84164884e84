"""Mail that takes long to parse, which anyone can send, is parsed in a thread; ordinary mail is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.values import UidSet
from replicator.imap import selection
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected, fill
from tests.imap.counted_threads import CountedThreads
from tests.one_node import HookedMail

MIXED = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"


def nested(levels: int) -> bytes:
    body = b"\r\nHello\r\n"
    for level in range(levels):
        head = b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (level, level)
        body = head + body + b"\r\n--b%d--\r\n" % level
    return body


ORDINARY = (
    b"Received: from a.example by b.example; Mon, 1 Jan 2024 10:00:00 +0000\r\n" * 20
    + b"From: Ann <ann@example.org>\r\nTo: bob@example.org, carl@example.org\r\n"
    + b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
    + MIXED
    + b"--b\r\nContent-Type: text/plain\r\n\r\n"
    + b"Hello and goodbye\r\n" * 800
    + b"--b\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    + b"iVBORw0KGgo=\r\n" * 800
    + b"--b--\r\n"
)
MAILS = {
    "ordinary": ORDINARY,
    "fields": b"X: y\r\n" * 10_000 + b"\r\nHello\r\n",
    "addresses": b"To: " + b", ".join(b"a%d@example.org" % number for number in range(10_000)) + b"\r\n\r\nHello\r\n",
    "parts": MIXED + b"--b\r\n\r\nx\r\n" * 10_000 + b"--b--\r\n",
    "small parts": MIXED + b"--b\r\n\r\nx\r\n" * 900 + b"--b--\r\n",
    "nested": nested(100),
    "small but for its text": b"Content-Type: text/html\r\n\r\n" + b"<b>" * 100_000,
}
FEW_FIELDS = " ".join(f"BODY.PEEK[HEADER.FIELDS (X{number})]" for number in range(5))
MANY_FIELDS = " ".join(f"BODY.PEEK[HEADER.FIELDS.NOT (X{number})]" for number in range(100))
MANY_KEYS = " ".join(f"NOT HEADER X q{number}" for number in range(400))


@pytest.mark.parametrize(
    ("name", "command", "in_threads"),
    [
        ("ordinary", "FETCH 1 (UID FLAGS ENVELOPE BODYSTRUCTURE)", 0),
        ("ordinary", f"FETCH 1 (UID FLAGS {FEW_FIELDS})", 0),
        ("ordinary", "SEARCH OR FROM none OR TO none SUBJECT none", 0),
        ("ordinary", f"FETCH 1 ({MANY_FIELDS})", 1),  # the command itself
        ("ordinary", "SEARCH TEXT none", 0),
        ("fields", "FETCH 1 ENVELOPE", 1),
        ("fields", f"FETCH 1 ({FEW_FIELDS})", 1),
        ("fields", f"FETCH 1 ({MANY_FIELDS})", 2),
        ("fields", f"SEARCH {MANY_KEYS}", 3),  # the command itself, what it compares, and comparing
        ("fields", "SEARCH TEXT none", 1),
        ("addresses", "FETCH 1 ENVELOPE", 1),
        ("addresses", "SEARCH TO none", 2),
        ("parts", "FETCH 1 BODYSTRUCTURE", 1),
        ("parts", "FETCH 1 BODY[1]", 1),
        ("parts", "FETCH 1 ENVELOPE", 0),
        ("ordinary", "FETCH 1 PREVIEW", 1),
        ("ordinary", "FETCH 1 (ENVELOPE PREVIEW (LAZY))", 1),
        ("parts", "FETCH 1 (PREVIEW (LAZY))", 0),
        ("small but for its text", "FETCH 1 PREVIEW", 2),
        ("small parts", "FETCH 1 BODYSTRUCTURE", 1),
        ("small parts", "SEARCH BODY none", 1),
        ("nested", "FETCH 1 BODYSTRUCTURE", 1),
        ("nested", "SEARCH BODY none", 1),
    ],
)
async def test_what_takes_long_to_parse_is_parsed_in_a_thread(
    served: ImapServices, mail: HookedMail, name: str, command: str, in_threads: int
) -> None:
    threads = CountedThreads()
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(MAILS[name]))
    served = replace(served, parsing=Parsing(run_in_thread=threads))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(f"t {command}\r\n")
        await client.octets()
    assert threads.count == in_threads


@pytest.mark.parametrize("command", ["EXPUNGE", "UID EXPUNGE 1:*", "CLOSE"])
async def test_many_deleted_messages_are_looked_up_in_a_thread(
    served: ImapServices, mail: HookedMail, command: str
) -> None:
    threads = CountedThreads()
    served = replace(served, parsing=Parsing(run_in_thread=threads, many_messages=10))
    inbox = await fill(mail, messages=30)
    view = await served.mail.open_mailbox(inbox)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for deleted, left in ((10, 20), (11, 9)):
            assert threads.count == 0
            uids = UidSet.of([*view.messages][:deleted])
            await served.mail.store_flags(view, uids, added=frozenset({"\\Deleted"}))
            assert (await client.run(command))[-1].startswith("t OK")
            assert len(view.messages) == left
            await client.run("SELECT INBOX")
    assert threads.count == 1


@pytest.mark.parametrize(
    ("command", "threads"),
    [
        ("STORE 1:10 +FLAGS (a)", 0),
        ("STORE 1:11 +FLAGS (a)", 1),  # the UIDs
        ("UID STORE 1:10 +FLAGS.SILENT (a)", 0),
        ("UID STORE 1:* FLAGS.SILENT (a)", 2),  # and what their flags will be
        ("COPY 1:10 INBOX", 0),
        ("COPY 1:11 INBOX", 2),  # and COPYUID
        ("UID MOVE 1:* Other", 2),
    ],
)
async def test_many_messages_are_changed_with_the_help_of_threads(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch, command: str, threads: int
) -> None:
    counted = CountedThreads()
    monkeypatch.setattr(selection, "LOOKED_AT_ONCE", 3)
    served = replace(served, parsing=Parsing(run_in_thread=counted, many_messages=10))
    inbox = await fill(mail, messages=30)
    await mail.create_folder("alice", "Other")
    view = await mail.open_mailbox(inbox)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await mail.expunge(view, UidSet.of([30]))
        await mail.store_flags(view, UidSet.of([29]), added=frozenset({"other"}))
        told = await client.run(command)
        assert told[-1].startswith("t OK")
        assert counted.count == threads
        told += await client.run("NOOP")
        if "FLAGS.SILENT" in command:  # tells of another session's change, before or after its own
            flags = "a" if "1:*" in command else "other"
            assert [line for line in told if "FETCH" in line] == [rf"* 29 FETCH (UID 29 FLAGS (\Recent {flags}))"]


@pytest.mark.parametrize(
    ("command", "in_thread"),
    [
        ("UID FETCH 1,3:9,12:* (UID FLAGS)", False),
        ("SEARCH UID 1,3:9,12:* NOT DELETED OR FROM a@example.org SUBJECT b", False),
        ("UID FETCH {numbers} (UID FLAGS)", True),
        ("UID SEARCH UID {numbers}", True),
        ("UID STORE {numbers} +FLAGS.SILENT (a)", True),
        ("UID COPY {numbers} INBOX", True),
        ("SEARCH NOT ({words})", True),  # BAD: these are no keys
        ("STORE 1 +FLAGS.SILENT ({words}", True),
    ],
)
async def test_long_commands_are_read_in_a_thread(
    served: ImapServices, mail: HookedMail, command: str, *, in_thread: bool
) -> None:
    threads = CountedThreads()
    await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"\r\n"))
    served = replace(served, parsing=Parsing(run_in_thread=threads))
    numbers, words = ",".join(map(str, range(1, 2000, 2))), " ".join(["word"] * 1000)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run(command.format(numbers=numbers, words=words))
        assert (threads.count > 0) is in_thread
        assert (await client.run("NOOP"))[-1] == "t OK Nothing done"


@pytest.mark.parametrize(
    ("search", "to_keep_order"), [("SEARCH RETURN (UPDATE COUNT)", 0), ("SORT RETURN (UPDATE COUNT) (SIZE) UTF-8", 1)]
)
async def test_many_results_are_kept_up_to_date_in_a_thread(
    served: ImapServices, mail: HookedMail, search: str, to_keep_order: int
) -> None:
    threads = CountedThreads()
    view = await mail.open_mailbox(await fill(mail, messages=30))
    served = replace(served, parsing=Parsing(run_in_thread=threads, many_messages=10))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")

        async def used(*, by: str, tag: str = "t") -> int:
            before = threads.count
            assert (await client.run(by, tag))[-1].startswith(f"{tag} OK")
            return threads.count - before

        assert await used(by=f"{search} UID 1:5", tag="few") == 0
        await mail.store_flags(view, UidSet.of([1]), added=frozenset({"a"}))
        assert await used(by="NOOP") == 0
        assert await used(by=f"{search} UID 5:30 KEYWORD a", tag="none") == 0
        await mail.store_flags(view, UidSet.of(range(5, 30)), added=frozenset({"a"}))
        # What has changed; for each search, what is new among it, and how that changes the results.
        assert await used(by="NOOP") == 1 + 2 * 2
        await mail.expunge(view, UidSet.of([6]))
        assert await used(by="NOOP") == 1
        assert await used(by=f"{search} UID 5:30 NOT KEYWORD b", tag="many") == 1 + to_keep_order
