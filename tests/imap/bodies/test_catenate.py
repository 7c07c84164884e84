"""APPEND of parts that the store has (RFC 4469)."""

from __future__ import annotations

import dataclasses
from base64 import encodebytes
from collections.abc import Callable, Iterable
from itertools import product

import pytest

from protocol.units import KIB
from replicator.imap.handlers.messages.append import MAX_STORED_PARTS
from replicator.imap.services import ImapServices
from replicator.imap.wire.connection import WHOLE_LITERAL_BYTES
from replicator.imap.wire.message_urls import MAX_URL
from replicator.mail.mailstore import Folder, NewMessage
from tests.effort import spread
from tests.imap.arrangements import in_the_core
from tests.imap.client import Client, connected, fill
from tests.imap_data.dovecot import needs_dovecot, said_by_dovecot
from tests.imap_data.hard_mails import HARD_MAILS
from tests.one_node import HookedMail, SinkLog

FILE = bytes(range(256)) * 4000
DRAFT = (
    b"Subject: draft\r\nX-Raw: \xe4\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nHello\r\n"
    b"--b\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    + encodebytes(FILE).replace(b"\n", b"\r\n")
    + b"\r\n--b--\r\n"
)
ATTACHMENT = encodebytes(FILE).replace(b"\n", b"\r\n")
SECTIONS = {
    "": DRAFT,
    "/;SECTION=HEADER": DRAFT[: DRAFT.index(b"--b")],
    "/;SECTION=HEADER.FIELDS%20(Subject%20Date)": b"Subject: draft\r\n\r\n",
    "/;SECTION=TEXT": DRAFT[DRAFT.index(b"--b") :],
    "/;SECTION=1": b"Hello",
    "/;SECTION=2.MIME": b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n",
    "/;SECTION=2": ATTACHMENT,
    "/;SECTION=2/;PARTIAL=70000.100000": ATTACHMENT[70_000:170_000],
    "/;PARTIAL=9.5": b"draft",
    "/;SECTION=1/;PARTIAL=3": b"lo",
    "/;SECTION=1/;PARTIAL=99.1": b"",
}
SIZES = (20, WHOLE_LITERAL_BYTES, WHOLE_LITERAL_BYTES + 1)


@pytest.fixture
async def inbox(mail: HookedMail) -> Folder:
    inbox = await fill(mail, body=DRAFT)
    await mail.create_folder("alice", "new")
    return inbox


@pytest.fixture
def served_with_draft(served: ImapServices, inbox: Folder) -> ImapServices:  # noqa: ARG001 - for its effect
    """Return the services once INBOX has the draft."""
    return served


async def added(mail: HookedMail) -> list[bytes]:
    return await mail.bodies("alice", "new")


def text(octets: bytes, sign: str = "+") -> bytes:
    return f"TEXT {{{len(octets)}{sign}}}\r\n".encode() + octets


@in_the_core
@pytest.mark.parametrize("part", SECTIONS)
async def test_part_is_taken_over_as_it_is(mail: HookedMail, served: ImapServices, inbox: Folder, part: str) -> None:
    mail.sinks = sinks = SinkLog()
    for validity in ("", f";UIDVALIDITY={inbox.uidvalidity}"):
        async with connected(served) as client:
            await client.log_in("alice")
            await client.send(
                f'a APPEND new CATENATE (URL "/INBOX{validity}/;UID=1{part}" '.encode() + text(b".") + b")\r\n"
            )
            assert (await client.line()).startswith("a OK [APPENDUID ")
    assert await added(mail) == [SECTIONS[part] + b"."] * 2
    assert max(map(len, sinks.written)) <= 128 * KIB
    assert (sinks.opened, sinks.open) == (2, 0)


async def test_parts_come_in_their_order(mail: HookedMail, served: ImapServices, inbox: Folder) -> None:
    """RFC 4469 appendix A, example 1; the message that is taken over stays unseen."""
    head, mime = SECTIONS["/;SECTION=HEADER"], SECTIONS["/;SECTION=2.MIME"]
    url = f"URL /INBOX;UIDVALIDITY={inbox.uidvalidity}/;UID=1/;section="
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(f"a APPEND new (\\Draft $K) CATENATE ({url}HEADER TEXT {{5}}\r\n")
        assert await client.line() == "+ Send the literal"
        await client.send(f"--b\r\n {url}2.MIME {url}2 TEXT {{9}}\r\n")
        assert await client.line() == "+ Send the literal"
        await client.send("\r\n--b--\r\n)\r\n")
        assert (await client.line()).endswith(" 1] Appended")
        assert "* 1 FETCH (FLAGS (\\Recent))" in await client.run("FETCH 1 FLAGS")
    assert await added(mail) == [head + b"--b\r\n" + mime + ATTACHMENT + b"\r\n--b--\r\n"]
    view = await mail.open_mailbox(await mail.folder("alice", "new"))
    assert [row.flags for row in view.messages.values()] == [{"\\Draft", "$K"}]


async def send(client: Client, chunks: Iterable[tuple[bytes, bytes | None]], waits: Callable[[int], bool]) -> str:
    """Send a command in chunks, each with a literal or None, waiting for permission where the test says so."""
    for number, (before, literal) in enumerate(chunks):
        await client.send(before)
        if literal is None:
            continue
        await client.send(f"{{{len(literal)}{'' if waits(number) else '+'}}}\r\n")
        if waits(number) and (line := await client.line()) != "+ Send the literal":
            return line
        await client.send(literal)
    return await client.line()


@pytest.mark.parametrize("sizes", spread(4, product(SIZES, repeat=2)))
@pytest.mark.parametrize("waiting", spread(6, range(16)))
async def test_all_kinds_of_literals_mix(
    mail: HookedMail, served_with_draft: ImapServices, sizes: tuple[int, ...], waiting: int
) -> None:
    one, two = (letter * size for letter, size in zip((b"x", b"y"), sizes, strict=True))
    chunks = [
        (b"a APPEND new (\\Seen) CATENATE (TEXT ", one),
        (b" URL ", b"/INBOX/;UID=1/;SECTION=1"),
        (b" TEXT ~", two),
        (b" URL /INBOX/;UID=1/;PARTIAL=0.7) (\\Flagged) ", b"whole"),
        (b" CATENATE (URL ", b"/INBOX/;UID=1/;SECTION=1/;PARTIAL=0.1"),
        (b" TEXT ", two),
        (b")\r\n", None),
    ]
    async with connected(served_with_draft) as client:
        await client.log_in("alice")
        answer = await send(client, chunks, waits=lambda number: bool(waiting >> number % 4 & 1))
        assert answer.endswith(" 1:3] Appended")
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await added(mail) == [one + b"Hello" + two + b"Subject", b"whole", b"H" + two]


async def test_command_may_come_octet_by_octet(mail: HookedMail, served_with_draft: ImapServices) -> None:
    command = (
        b"a APPEND new CATENATE ("
        + text(b"one")
        + b' URL "/INBOX/;UID=1/;SECTION=1" URL {24+}\r\n/INBOX/;UID=1/;SECTION=1'
        b" " + text(b"x" * (WHOLE_LITERAL_BYTES + 1)) + b") {3+}\r\ntwo\r\nb NOOP\r\n"
    )
    async with connected(served_with_draft) as client:
        await client.log_in("alice")
        for start in range(200):
            await client.send(command[start : start + 1])
        await client.send(command[200:-200])
        for start in range(len(command) - 200, len(command)):
            await client.send(command[start : start + 1])
        assert (await client.line()).endswith(" 1:2] Appended")
        assert (await client.line()).startswith("b OK")
    assert await added(mail) == [b"oneHelloHello" + b"x" * (WHOLE_LITERAL_BYTES + 1), b"two"]


@pytest.mark.parametrize("sign", ["", "+"])
@pytest.mark.parametrize("size", spread(2, SIZES))
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("/INBOX/;UID=9", "'INBOX' has no message with UID 9"),
        ("/INBOX;UIDVALIDITY=1/;UID=1", "the UIDVALIDITY of 'INBOX' is "),
        ("/nowhere/;UID=1", "there is no folder 'nowhere'"),
        ("/INBOX/;UID=1/;SECTION=9", "the message has no such part"),
        ("/INBOX/;UID=1/;SECTION=TXET", "'TXET' is not a section of a message"),
        ("imap://alice@localhost/INBOX/;UID=1", "a URL must be relative"),
        ("/INBOX", "this is not the URL of a message"),
        (";UID=1", "the URL is relative to a mailbox, and none is selected"),
    ],
)
async def test_bad_url_leaves_out_all(  # noqa: PLR0917 - fixtures and parameters
    mail: HookedMail, served_with_draft: ImapServices, sign: str, size: int, url: str, why: str
) -> None:
    """RFC 4469 section 4.1: a client that waits hears at once."""
    mail.sinks = sinks = SinkLog()
    async with connected(served_with_draft) as client:
        await client.log_in("alice")
        await client.send(f'a APPEND new {{3+}}\r\nabc CATENATE (URL "{url}" TEXT {{{size}{sign}}}\r\n')
        if sign:
            await client.send(b"x" * size + b" URL /INBOX/;UID=1 TEXT {70000+}\r\n" + b"y" * 70_000 + b")\r\n")
        answer = await client.line()
        assert answer.startswith(f"a NO [BADURL {url}] "), answer
        assert why.lower() in answer.lower()
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await added(mail) == []
    assert sinks.open == 0


@pytest.mark.parametrize("first", [b"TEXT {3+}\r\nabc", b"TEXT {70000+}\r\n" + b"x" * 70_000, b"URL /INBOX/;UID=1"])
@pytest.mark.parametrize(
    "rest", [b"", b" ", b"URL x)", b" URL", b" {3+}\r\nabc)", b" TEXT x)", b" (URL x)", b")x", b") ()"]
)
async def test_bad_syntax_after_a_part_leaves_out_all(
    mail: HookedMail, served_with_draft: ImapServices, first: bytes, rest: bytes
) -> None:
    async with connected(served_with_draft) as client:
        await client.log_in("alice")
        await client.send(b"a APPEND new CATENATE (" + first + rest + b"\r\n")
        assert (await client.line()).startswith("a BAD Expected ")
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await added(mail) == []


async def test_url_is_relative_to_the_selected_mailbox(mail: HookedMail, served_with_draft: ImapServices) -> None:
    folder = await mail.create_folder("alice", "a/b")
    await mail.save(folder, NewMessage(b"in b"))
    async with connected(served_with_draft) as client:
        await client.log_in("alice", "a/b")
        for url in (";UID=1", "b/;UID=1", "/a/b/;UID=1"):
            assert (await client.run(f"APPEND new CATENATE (URL {url})"))[-1].startswith("t OK ")
        assert (await client.run("APPEND new CATENATE (URL INBOX/;UID=1)"))[-1].startswith("t NO [BADURL ")
    assert await added(mail) == [b"in b"] * 3


async def test_nobody_elses_mail_is_named(mail: HookedMail, served_with_draft: ImapServices) -> None:
    async with connected(served_with_draft) as client:
        await client.log_in("bob")
        for url in ("/INBOX/;UID=1", "/alice/INBOX/;UID=1", "//alice@localhost/INBOX/;UID=1", "/../alice/INBOX/;UID=1"):
            assert (await client.run(f"APPEND INBOX CATENATE (URL {url})"))[-1].startswith("t NO [BADURL ")
    assert await mail.bodies("bob") == []


@in_the_core
async def test_message_has_its_largest_size(mail: HookedMail, served_with_draft: ImapServices) -> None:
    """RFC 4469 section 4.2, RFC 7889: nothing is read that would be too much."""
    mail.sinks = sinks = SinkLog()
    whole = len(DRAFT)
    async with connected(dataclasses.replace(served_with_draft, max_message_bytes=2 * whole)) as client:
        await client.log_in("alice")
        url = "URL /INBOX/;UID=1"
        assert (await client.run(f"APPEND new CATENATE ({url} {url})"))[-1].startswith("t OK ")
        assert len(sinks.written) > 0
        written = len(sinks.written)
        for parts, code in [
            (f"CATENATE ({url} {url} URL /INBOX/;UID=1/;PARTIAL=0.1)", "TOOBIG"),
            (f"CATENATE ({url} {url} TEXT {{1+}}\r\nx)", "TOOBIG"),
            (f"CATENATE ({url} {url}) CATENATE (URL /INBOX/;UID=1/;PARTIAL=0.1)", "LIMIT"),
        ]:
            assert (await client.run(f"APPEND new {parts}"))[-1].startswith(f"t NO [{code}] "), parts
        assert sum(map(len, sinks.written[written:])) == 6 * whole
    assert len(await added(mail)) == 1


async def test_urls_have_limits(mail: HookedMail, served_with_draft: ImapServices) -> None:
    async with connected(served_with_draft) as client:
        await client.log_in("alice")
        parts = ["URL /INBOX/;UID=1/;PARTIAL=0.1"] * (MAX_STORED_PARTS + 1)
        assert (await client.run(f"APPEND new CATENATE ({' '.join(parts[1:])})"))[-1].startswith("t OK ")
        mail.sinks = sinks = SinkLog()
        for half in (len(parts), len(parts) // 2):  # in one message, and in two
            both = " ".join(f"CATENATE ({' '.join(some)})" for some in (parts[:half], parts[half:]) if some)
            assert await client.run(f"APPEND new {both}") == [
                f"t NO [LIMIT] An APPEND may have {MAX_STORED_PARTS} URLs"
            ]
        assert sinks.written == []  # none was read
        for size, code in ((MAX_URL, "BADURL /"), (MAX_URL + 1, "LIMIT]")):
            await client.send(f"t APPEND new CATENATE (URL {{{size}+}}\r\n/{'x' * (size - 1)})\r\n")
            answer = await client.line()
            assert answer.startswith(f"t NO [{code}")
            assert len(answer) < 1000
        for url in (f"/{'x' * 7000}/;UID=1", f"/INBOX/;UID=1/;SECTION={'x' * 7000}", "/" + "%00" * 2700):
            assert len((await client.run(f"APPEND new CATENATE (URL {url})"))[-1]) < 1000
        await client.send(f"t APPEND new CATENATE (TEXT {{1+}}\r\nx URL {{70000+}}\r\n{'x' * 70_000})\r\n")
        assert await client.line() == "t BAD Only the message of an APPEND may be a literal of 70000 bytes"
        await client.send("t APPEND new CATENATE (TEXT {1}\r\n")
        await client.line()
        await client.send("x URL {70000}\r\n")
        assert await client.line() == "t BAD Only the message of an APPEND may be a literal of 70000 bytes"
        await client.send("t APPEND new CATENATE (URL {70000}\r\n")
        assert await client.line() == "t BAD Only the message of an APPEND may be a literal of 70000 bytes"
        assert await client.run("NOOP") == ["t OK Nothing done"]
    assert await added(mail) == [b"S" * MAX_STORED_PARTS]


async def test_body_that_no_node_has_is_said_to_be_out_of_reach(
    mail: HookedMail, served: ImapServices, inbox: Folder
) -> None:
    view = await mail.open_mailbox(inbox)
    await mail.lose_body(view.messages[1])
    async with connected(served) as client:
        await client.log_in("alice")
        assert (await client.run("APPEND new CATENATE (URL /INBOX/;UID=1)"))[-1].startswith("t NO [UNAVAILABLE] ")
    assert await added(mail) == []


EXISTING = (
    "",
    "/;SECTION=HEADER",
    "/;SECTION=TEXT",
    "/;SECTION=HEADER.FIELDS.NOT%20(subject%20from)",
    "/;PARTIAL=5.99",
)
REFUSED = ("/INBOX;UIDVALIDITY=1/;UID=1", "/nowhere/;UID=1", "/INBOX/;UID=0", "/INBOX;UID=1", "/;UID=1",
           "//x/INBOX/;UID=1", "imap://x/INBOX/;UID=1", "/INBOX/;UID=1?x")  # fmt: skip


@needs_dovecot
async def test_messages_are_those_of_dovecot(mail: HookedMail, served: ImapServices) -> None:
    """Dovecot ends each line with CRLF, and sends no NUL. It waits for its APPENDs before a SELECT."""
    ends = (b"\n", b"\r\n", b"\r")
    mails = [body for body in HARD_MAILS.values() if len({*map(body.count, ends)}) == 1 and b"\0" not in body][::4]
    commands = [
        f'APPEND INBOX CATENATE (TEXT {{3+}}\r\n>>> URL "/INBOX/;UID={uid}{part}" TEXT {{3+}}\r\n<<<)'
        for uid, part in product(range(1, len(mails) + 1), EXISTING)
    ]
    fetch = f"FETCH {len(mails) + 1}:* BODY.PEEK[]"
    theirs = said_by_dovecot(mails, *commands, "SELECT INBOX", fetch)
    await fill_all(mail, mails)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for command in commands:
            assert (await client.run(command))[-1].startswith("t OK ")
    ours = (await mail.bodies("alice"))[len(mails) :]
    assert len(ours) == len(commands)
    missing = [command for command, body in zip(commands, ours, strict=True) if body not in theirs]
    assert not missing
    assert max(len(body) for body in ours) > 100


@needs_dovecot
async def test_urls_that_dovecot_refuses_are_refused(mail: HookedMail, served: ImapServices) -> None:
    commands = [f'APPEND INBOX CATENATE (URL "{url}")' for url in REFUSED]
    theirs = said_by_dovecot([DRAFT], *commands, condition="NO").decode("latin-1")
    await fill(mail, body=DRAFT)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for number, (command, url) in enumerate(zip(commands, REFUSED, strict=True)):
            code = f" NO [BADURL {url}] "
            assert (await client.run(command))[-1].startswith(f"t{code}")
            assert f"\r\nt{number}{code}" in theirs


async def fill_all(mail: HookedMail, bodies: Iterable[bytes]) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for body in bodies:
        await mail.save(inbox, NewMessage(body))
