"""ENVELOPE, BODYSTRUCTURE and PREVIEW of a hundred difficult messages, compared with those of Debian's Dovecot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

import pytest

from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from tests.imap.client import connected, services
from tests.imap_data.dovecot import needs_dovecot, said_by_dovecot
from tests.imap_data.hard_mails import HARD_MAILS, file, parts, text
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
"""Messages of which ENVELOPE or BODYSTRUCTURE differ, and why."""

OTHER_PREVIEWS = {
    "digest": "the text of a forwarded message counts, not its header, which Dovecot shows before it",
    "forwarded three times": "if all that there is was forwarded, its text is shown",
    "forwarded multipart": "if all that there is was forwarded, its text is shown",
    "forwarded in base64": "what cannot be a header is shown as text, as in BODYSTRUCTURE",
    "text without a header": "what cannot be a header is shown as text, as in BODYSTRUCTURE",
    "no parts": "a multipart without parts is the text that it is, as in BODYSTRUCTURE",
    "no boundary": "a multipart without parts is the text that it is, as in BODYSTRUCTURE",
    "only an end": "a multipart without parts is the text that it is, as in BODYSTRUCTURE",
    "delimiter twice": "Dovecot's first part is empty, and it looks at no other one",
    "content type without a subtype": "a type with a wrong syntax is text/plain, as in BODYSTRUCTURE",
    "content type is nonsense": "a type with a wrong syntax is text/plain, as in BODYSTRUCTURE",
    "content type is empty": "a type with a wrong syntax is text/plain, as in BODYSTRUCTURE",
    "encoding empty": "an encoding that is not named is none",
    "8-bit file name": "an attachment is not shown, whatever its name; Dovecot drops the field",
    "PGP inline": "RFC 8970 section 3.2: an encrypted message has an empty preview",
}
"""Messages of which PREVIEW differs, and why."""

PIECES = {
    "plain text": text("Hello,\r\n\r\n  wörld  of\tmail\r\n".encode(), "plain; charset=utf-8"),
    "long": text(b"word \r\n" * 100),
    "quotation at the end": text(b"Yes.\r\n> Shall we?\r\n"),
    "quotation first": text(b"> Shall we?\r\nYes.\r\n"),
    "nothing but a quotation": text(b"> Shall we?\r\n> Or not?\r\n"),
    "HTML": text(b"<html><head><title>T</title></head><body><p>One</p><p>Two<br>three</body></html>", "html"),
    "style and script": text(b"<style>p { }</style><script>x < y</script><p>Hello", "html"),
    "entities": text(b"a &lt;b&gt; &amp; &#8364; c", "html; charset=utf-8"),
    "comment": text(b"<!-- no --><p>Hello", "html"),
    "quotation in HTML": text(b"<p>Yes.</p><blockquote>Shall we?</blockquote>", "html"),
    "inline tags": text(b"<p>a<b>b</b>c <i>d</i>", "html"),
    "empty plain text": parts("alternative", text(b"\r\n"), text(b"<p>Hello", "html")),
    "HTML first": parts("alternative", text(b"<p>Rich", "html"), text(b"Plain\r\n")),
    "attachment first": parts("mixed", file(), text(b"Hello\r\n")),
    "hidden": text(b"<div style='display:none'>no</div><p>Hello", "html"),
    "signature": text(b"Hello\r\n-- \r\nAnn\r\n"),
    "introduction": text(b"On 1 May, Ann wrote:\r\n> Shall we?\r\nYes.\r\n"),
    "unseen characters": text("A\u200b\u00adB".encode(), "plain; charset=utf-8"),
    "ornament": text(b"=====\r\nNews\r\n"),
}
"""Messages for PREVIEW alone."""

OTHER_PIECES = {
    "nothing but a quotation": "the marks of quotations are left out; Dovecot shows the first one",
    "HTML": "the title is not part of what the message shows",
    "inline tags": "a tag within a word parts nothing; Dovecot puts a space in the place of each",
    "empty plain text": "if one form of the message is empty, the other one counts",
    "hidden": "what the message hides from its reader is not shown",
    "signature": "a signature is not shown",
    "introduction": "the line that introduces a quotation goes with it",
    "unseen characters": "invisible characters are left out",
    "ornament": "lines without any words are left out",
}
"""Messages of which PREVIEW differs, and why."""


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
    return answers(await said_by_this_server(served, "FETCH 1:* (ENVELOPE BODYSTRUCTURE)"))


async def said_by_this_server(served: ImapServices, command: str) -> bytes:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(f"t {command}\r\n")
        return await client.octets()


@needs_dovecot
@pytest.mark.parametrize(("mails", "known"), [(HARD_MAILS, OTHER_PREVIEWS), (PIECES, OTHER_PIECES)])
async def test_previews_are_those_of_dovecot(tmp_path: Path, mails: dict[str, bytes], known: dict[str, str]) -> None:
    async with one_node(tmp_path) as mail:
        inbox = await mail.folder("alice", "INBOX")
        for body in mails.values():
            await mail.save(inbox, NewMessage(body))
        ours = previews(await said_by_this_server(services(mail), "FETCH 1:* PREVIEW"))
    theirs = previews(said_by_dovecot(mails.values(), "FETCH 1:* PREVIEW"))
    assert len(ours) == len(theirs) == len(mails)
    different = {name: (mine, other) for name, mine, other in zip(mails, ours, theirs, strict=True) if mine != other}
    assert not {name: pair for name, pair in different.items() if name not in known}
    assert set(different) == set(known), "these do not differ any more"


def previews(said: bytes) -> list[Value]:
    """Return the preview of each message."""
    starts = re.finditer(rb"^\* [0-9]+ FETCH \(PREVIEW ", said, re.MULTILINE)
    return [read(said, start.end())[0] for start in starts]


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
