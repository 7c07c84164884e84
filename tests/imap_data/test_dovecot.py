"""ENVELOPE and BODYSTRUCTURE of a hundred difficult messages, compared with those of Debian's Dovecot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from replicator.imap.services import ImapServices
from replicator.mailstore import NewMessage
from tests.imap.client import connected, services
from tests.imap_data.dovecot import needs_dovecot, said_by_dovecot
from tests.imap_data.hard_mails import HARD_MAILS
from tests.one_node import one_node

Value: TypeAlias = "bytes | list[Value] | None"

DIFFERENCES = {
    "forwarded in base64": "an invalid line ends a header here, so what cannot be a header is shown as text",
    "text without a header": "an invalid line ends a header here, so what cannot be a header is shown as text",
    "line feeds alone": "octets are counted as they are sent; Dovecot sends each LF as CRLF",
    "binary body": "octets are counted as they are sent; Dovecot sends each LF as CRLF",
    "no parts": "a multipart without parts is shown as the text that it is, not as one empty part",
    "no boundary": "a multipart without parts is shown as the text that it is, not as one empty part",
    "only an end": "a multipart without parts is shown as the text that it is, not as one empty part",
    "delimiter twice": "adjacent delimiters begin one part, not an empty one before it",
    "content type without a subtype": "RFC 2045 section 5.2 advises text/plain for a type with a wrong syntax",
    "content type is nonsense": "RFC 2045 section 5.2 advises text/plain for a type with a wrong syntax",
    "content type is empty": "RFC 2045 section 5.2 advises text/plain for a type with a wrong syntax",
    "parameter without a value": "a wrong parameter hides none of those behind it",
    "parameter with an open quote": "a quoted string may end with its field; Dovecot drops it",
    "encoding unknown": "an unknown encoding is named, so that the client does not take the content for text",
    "encoding with a comment": "RFC 2045 section 2 allows a comment there",
    "folded everywhere": "unfolding keeps the tab (RFC 5322 section 2.2.3); Dovecot replaces it by a space",
    "8-bit file name": "octets are shown as the sender wrote them; Dovecot drops the field",
    "no host": "what is missing is empty; Dovecot calls it MISSING_DOMAIN, and shows an address of nothing",
    "unclosed": "an address is complete without its bracket; Dovecot puts SYNTAX_ERROR for its host",
    "fields twice": "the first of several fields counts; Dovecot takes the last subject and date, and all addresses",
}
"""Messages of which the answers differ, and why."""


@needs_dovecot
async def test_answers_are_those_of_dovecot(tmp_path: Path) -> None:
    async with one_node(tmp_path) as mail:
        inbox = await mail.folder("alice", "INBOX")
        for body in HARD_MAILS.values():
            await mail.save(inbox, NewMessage(body))
        ours = await answers_of_this_server(services(mail))
    theirs = answers(said_by_dovecot(HARD_MAILS.values(), "FETCH 1:* (ENVELOPE BODYSTRUCTURE)"))
    assert len(ours) == len(theirs) == len(HARD_MAILS)
    different = {
        name: (mine, other) for name, mine, other in zip(HARD_MAILS, ours, theirs, strict=True) if mine != other
    }
    assert not {name: pair for name, pair in different.items() if name not in DIFFERENCES}
    assert set(different) == set(DIFFERENCES), "these do not differ any more"


async def answers_of_this_server(served: ImapServices) -> list[Value]:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send("t FETCH 1:* (ENVELOPE BODYSTRUCTURE)\r\n")
        return answers(await client.octets())


def answers(said: bytes) -> list[Value]:
    """Return the pair ENVELOPE and BODYSTRUCTURE of each message."""
    found = []
    for start in re.finditer(rb"^\* [0-9]+ FETCH (?=\()", said, re.MULTILINE):
        value, _ = read(said, start.end())
        assert isinstance(value, list)
        pairs = dict(zip(map(str, value[::2]), value[1::2], strict=True))
        found.append([pairs[str(b"ENVELOPE")], without_case(pairs[str(b"BODYSTRUCTURE")])])
    return [*found]


def read(said: bytes, at: int) -> tuple[Value, int]:
    """Return the value at this offset, and where it ends."""
    if said[at : at + 1] == b"(":
        values, at = [], at + 1
        while said[at : at + 1] != b")":
            value, at = read(said, at + (said[at : at + 1] == b" "))
            values.append(value)
        return values, at + 1
    if literal := re.compile(rb"\{(\d+)\}\r\n").match(said, at):
        end = literal.end() + int(literal[1])
        return said[literal.end() : end], end
    if quoted := re.compile(rb'"((?:[^"\\]|\\.)*)"').match(said, at):
        return re.sub(rb"\\(.)", rb"\1", quoted[1]), quoted.end()
    atom = re.compile(rb"[^\s()]+").match(said, at)
    assert atom, said[at : at + 100]
    return None if atom[0] == b"NIL" else atom[0], atom.end()


def without_case(structure: Value) -> Value:
    """Return a body structure with the words in lower case whose case has no meaning (RFC 2045 sections 5.1, 6.1)."""
    assert isinstance(structure, list)
    if isinstance(structure[0], list):
        count = next(at for at, value in enumerate(structure) if not isinstance(value, list))
        bodies = [without_case(value) for value in structure[:count]]
        return [*bodies, lower(structure[count]), *structure[count + 1 :]]
    kind, subtype, parameters, identifier, description, encoding, *rest = structure
    if lower(kind) == b"message" and lower(subtype) == b"rfc822" and isinstance(rest[1], list):
        rest[2] = without_case(rest[2])
    if parameters is not None and parameters[-2:] == [b"CHARSET", b"US-ASCII"]:
        parameters = [*parameters[:-2], b"charset", b"us-ascii"]
    return [lower(kind), lower(subtype), parameters, identifier, description, lower(encoding), *rest]


def lower(value: Value) -> Value:
    assert isinstance(value, bytes)
    return value.lower()
