"""BINARY (RFC 3516): contents without their transfer encoding, and messages that hold NUL."""

from __future__ import annotations

import base64
import hashlib
import quopri

import pytest
import trio

from protocol.units import KIB
from replicator.imap.services import ImapServices
from replicator.imap.text.transfer_encodings import DECODERS
from replicator.imap.wire.connection import WHOLE_LITERAL_BYTES
from replicator.mail.view import SEEN
from tests.imap.client import Client, connected, fill
from tests.one_node import HookedMail

OCTETS = bytes(range(256)) * 3
TEXT = "Grüße,\n  and a line that ends in a space \n".encode()
LARGE = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(100_000))


def mail_of(*parts: bytes, boundary: bytes = b"b") -> bytes:
    return (
        b"Subject: x\r\nContent-Type: multipart/mixed; boundary="
        + boundary
        + b"\r\n\r\n"
        + b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts)
        + b"--"
        + boundary
        + b"--\r\n"
    )


def part(encoding: bytes, content: bytes) -> bytes:
    return b"Content-Type: application/x\r\nContent-Transfer-Encoding: " + encoding + b"\r\n\r\n" + content


def encoded(octets: bytes) -> bytes:
    return base64.encodebytes(octets).replace(b"\n", b"\r\n").removesuffix(b"\r\n")


MAIL = mail_of(
    part(b"base64", encoded(OCTETS)),
    part(b"Quoted-Printable (x)", quopri.encodestring(TEXT).replace(b"\n", b"\r\n")),
    part(b"8bit", b"a\0b\xff"),
    part(b"x-uuencode", b"begin 644 a\r\nend"),
    b"Content-Type: message/rfc822\r\n\r\n" + mail_of(part(b"base64", encoded(b"inner")), boundary=b"inner"),
    part(b"base64", b"!" * 100 + b"QUI=" + b"REVG"),
)


async def answer(client: Client, items: str) -> bytes:
    await client.send(f"t FETCH 1 ({items})\r\n")
    return (await client.octets()).partition(b"\r\nt ")[0]


def literal8(octets: bytes) -> bytes:
    return b"~{%d}\r\n%b" % (len(octets), octets)


@pytest.mark.parametrize(
    ("item", "name", "octets"),
    [
        ("1", "1", OCTETS),
        ("2", "2", TEXT.replace(b"\n", b"\r\n")),
        ("3", "3", b"a\0b\xff"),
        ("5.1", "5.1", b"inner"),
        ("5", "5", mail_of(part(b"base64", encoded(b"inner")), boundary=b"inner")),
        ("", "", MAIL),
        ("6", "6", b"AB"),
    ],
)
async def test_contents_are_decoded(
    mail: HookedMail, served: ImapServices, item: str, name: str, octets: bytes
) -> None:
    await fill(mail, body=MAIL)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        said = await answer(client, f"BINARY.PEEK[{item}] BINARY.SIZE[{item}] BINARY.PEEK[{item}]<2.5>")
        assert said == (
            f"* 1 FETCH (BINARY[{name}] ".encode() + literal8(octets)
            + f" BINARY.SIZE[{name}] {len(octets)} BINARY[{name}]<2> ".encode() + literal8(octets[2:7]) + b")\r\n"
        )  # fmt: skip
        assert await answer(client, f"BINARY[{item}]<{len(octets)}.1>") == (
            f"* 1 FETCH (BINARY[{name}]<{len(octets)}> ~{{0}}\r\n FLAGS (\\Seen \\Recent))\r\n".encode()
        )
    [message] = (await mail.open_mailbox(await mail.folder("alice", "INBOX"))).messages.values()
    assert SEEN in message.flags


async def test_what_cannot_be_decoded_is_an_error(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, body=MAIL)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for item in ("BINARY[4]", "BINARY.SIZE[4]"):
            [line] = await client.run(f"FETCH 1 {item}")
            assert line == "t NO [UNKNOWN-CTE] the encoding 'x-uuencode' of a part is not known here"
        assert await client.run("FETCH 1 (BINARY.PEEK[9] BINARY.SIZE[9])") == [
            "* 1 FETCH (BINARY[9] NIL BINARY.SIZE[9] 0)", "t OK Fetched"
        ]  # fmt: skip
        for wrong in ("BINARY[1.MIME]", "BINARY[TEXT]", "BINARY.SIZE[1]<0.1>", "BINARY"):
            assert (await client.run(f"FETCH 1 {wrong}"))[0].startswith("t BAD Expected ")


async def test_large_content_is_decoded_as_it_is_sent(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, body=mail_of(part(b"base64", encoded(LARGE)), part(b"base64", encoded(b"behind"))))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await answer(client, "BINARY.PEEK[1]") == b"* 1 FETCH (BINARY[1] " + literal8(LARGE) + b")\r\n"
        some = LARGE[1_000_001:1_300_001]
        said = await answer(client, "BINARY.PEEK[1]<1000001.300000> BINARY.SIZE[1] BINARY.PEEK[2]")
        assert said == b"* 1 FETCH (BINARY[1]<1000001> %b BINARY.SIZE[1] %d BINARY[2] %b)\r\n" % (
            literal8(some),
            len(LARGE),
            literal8(b"behind"),
        )


@pytest.mark.parametrize("sign", ["", "+"])
@pytest.mark.parametrize("size", [1000, WHOLE_LITERAL_BYTES + 1])
async def test_message_with_nul_is_stored(mail: HookedMail, served: ImapServices, sign: str, size: int) -> None:
    body = b"Content-Type: application/x\r\nContent-Transfer-Encoding: binary\r\n\r\n" + bytes(size)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(f"a APPEND INBOX (\\Seen) ~{{{len(body)}{sign}}}\r\n")
        if not sign:
            assert await client.line() == "+ Send the literal"
        await client.send(body + b" ~{1+}\r\nx\r\n")
        assert "a OK" in (await client.until("a"))[-1]
        assert await answer(client, "BINARY.PEEK[1]") == b"* 1 FETCH (BINARY[1] " + literal8(bytes(size)) + b")\r\n"
        assert (await client.run("SEARCH BODY ~{1+}\r\nx"))[0].startswith("t BAD ")
    assert await mail.bodies("alice") == [body, b"x"]


@pytest.mark.parametrize("encoding", DECODERS)
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_pieces_of_any_size_decode_alike(encoding: bytes, step: int) -> None:
    text = {b"base64": encoded(OCTETS), b"quoted-printable": quopri.encodestring(OCTETS, quotetabs=True)}.get(
        encoding, OCTETS
    )
    decoder = DECODERS[encoding]()
    found = b"".join(decoder.write(text[at : at + step]) for at in range(0, len(text), step)) + decoder.finish()
    assert found == OCTETS


async def test_other_clients_are_served_between_the_pieces(mail: HookedMail, served: ImapServices) -> None:
    await fill(mail, body=mail_of(part(b"base64", encoded(LARGE))))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with connected(served) as client, trio.open_nursery() as nursery:
        await client.log_in("alice", "INBOX")
        nursery.start_soon(others)
        before = turns
        await client.run("FETCH 1 BINARY.SIZE[1]")
        nursery.cancel_scope.cancel()
    assert turns - before > len(LARGE) // (128 * KIB)
