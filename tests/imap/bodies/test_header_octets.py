"""Octets above 127 in the header of a message that is appended (RFC 6855 section 4)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.handlers.append import _HeaderCheck
from replicator.imap.services import ImapServices
from replicator.imap.wire.connection import WHOLE_LITERAL_BYTES
from tests.imap.client import connected
from tests.one_node import HookedMail, SinkLog

PIECES = st.lists(
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\xe4"]), max_size=4).map(b"".join), max_size=6
)


def header_of(message: bytes) -> bytes:
    lines = re.split(rb"(?<=\n)", message)
    empty = next((number for number, line in enumerate(lines) if line in {b"\n", b"\r\n"}), len(lines))
    return b"".join(lines[:empty])


@given(PIECES)
def test_octets_are_found_however_the_message_is_cut(pieces: list[bytes]) -> None:
    check = _HeaderCheck()
    assert any(check.finds(piece) for piece in pieces) == (not header_of(b"".join(pieces)).isascii())


@pytest.mark.parametrize("extension", ["UTF8=ACCEPT", "IMAP4rev2"])
@pytest.mark.parametrize("size", [100, WHOLE_LITERAL_BYTES, WHOLE_LITERAL_BYTES * 3])
async def test_they_need_the_extension(mail: HookedMail, served: ImapServices, size: int, extension: str) -> None:
    mail.sinks = sinks = SinkLog()
    message = b"Subject: x\r\n" + b"X-Long: y\r\n" * (size // 11) + b"X-Name: \xc3\xa4\r\n\r\n\xc3\xa4\r\n"
    command = f"a APPEND INBOX {{{len(message)}+}}\r\n".encode() + message + b"\r\n"
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(command)
        assert (await client.line()).startswith("a NO [CANNOT] A message with octets above 127 in its header needs")
        assert await mail.bodies("alice") == []
        assert sinks.open == 0
        assert (await client.run(f"ENABLE {extension.lower()}"))[0] == f"* ENABLED {extension}"
        await client.send(command)
        assert (await client.line()).startswith("a OK ")
    assert await mail.bodies("alice") == [message]
