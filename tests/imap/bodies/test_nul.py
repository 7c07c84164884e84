"""NUL is no CHAR8 (RFC 3501 section 9): clients may take it for the end of the text, so it goes out as 0x80."""

from __future__ import annotations

import pytest

from protocol.units import KIB, MIB
from replicator.imap.rendering.fetch_answers import SPAN_BYTES
from replicator.imap.services import ImapServices
from tests.imap.client import connected, fill
from tests.one_node import HookedMail

HEADER = b"Subject: a\0b\r\nContent-Type: application/octet-stream; name=c\0d\r\n"


@pytest.mark.parametrize("size", [4 * KIB, MIB, SPAN_BYTES + KIB])
async def test_literals_hold_no_nul(mail: HookedMail, served: ImapServices, size: int) -> None:
    content = (b"\0" + b"x" * 998 + b"\n") * (size // 1000)
    body = HEADER + b"\r\n" + content
    await fill(mail, body=body)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(
            "t FETCH 1 (BODY.PEEK[] BODY.PEEK[TEXT]<0.1000> BODY.PEEK[HEADER] ENVELOPE BODYSTRUCTURE)\r\n"
        )
        said = await client.octets()
    assert b"\0" not in said
    for item, octets in (
        (b"BODY[]", body),
        (b"BODY[TEXT]<0>", content[:1000]),
        (b"BODY[HEADER]", HEADER + b"\r\n"),
    ):
        assert b"%b {%d}\r\n%b" % (item, len(octets), octets.replace(b"\0", b"\x80")) in said
    assert b'NIL "ab" NIL' in said
    assert await mail.bodies("alice") == [body]
