from __future__ import annotations

from email.utils import formataddr, getaddresses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.imap.rendering.envelope import envelope
from replicator.imap.text.address_lists import GROUP_END, MAX_ADDRESSES, Address, parse_addresses
from replicator.imap.wire.fetch_items import Adjacent, Value
from tests.imap_data.corpus import corpus, message_header


def plain(mailbox: str, host: str, name: str | None = None) -> Address:
    return Address(None if name is None else name.encode(), None, mailbox.encode(), host.encode())


def group(name: str) -> Address:
    return Address(None, None, name.encode(), None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a@b", [plain("a", "b")]),
        ("a@b, c@d", [plain("a", "b"), plain("c", "d")]),
        ("<a@b>", [plain("a", "b")]),
        ("Ann B. Cee <a@b>", [plain("a", "b", "Ann B. Cee")]),
        ('"Cee, Ann \\"B\\"" <a@b>', [plain("a", "b", 'Cee, Ann "B"')]),
        ("a@b (Ann (of B) Cee)", [plain("a", "b", "Ann (of B) Cee")]),
        ("a@b (Ann \\) Cee)", [plain("a", "b", "Ann ) Cee")]),
        ("Ann (comment) <a@b>", [plain("a", "b", "Ann")]),
        ('"john doe"@b', [plain("john doe", "b")]),
        ('john."q. doe"@b', [plain("john.q. doe", "b")]),
        ("john . doe @ b . c", [plain("john.doe", "b.c")]),
        ("a@[192.0.2.1]", [plain("a", "[192.0.2.1]")]),
        ("=?utf-8?q?J=C3=B6rg?= <a@b>", [plain("a", "b", "=?utf-8?q?J=C3=B6rg?=")]),
        ("Jörg <jörg@b>", [plain("jörg", "b", "Jörg")]),
        ("a@b <a@b>", [plain("a", "b", "a@b")]),
        ("a@b@c", [plain("a@b", "c")]),
        ("<@x,@y:a@b>", [Address(None, b"@x,@y", b"a", b"b")]),
        ("Ann <@x:a@b>", [Address(b"Ann", b"@x", b"a", b"b")]),
        ("Team: a@b, Ann <c@d>;", [group("Team"), plain("a", "b"), plain("c", "d", "Ann"), GROUP_END]),
        ("undisclosed-recipients:;", [group("undisclosed-recipients"), GROUP_END]),
        ("A: a@b; B: ;, c@d", [group("A"), plain("a", "b"), GROUP_END, group("B"), GROUP_END, plain("c", "d")]),
        ("A: a@b", [group("A"), plain("a", "b"), GROUP_END]),
        ("root", [plain("root", "")]),
        ("root <>", [plain("", "", "root")]),
        ("<@b>", [plain("", "b")]),
        ("a@", [plain("a", "")]),
        ("", []),
        (" , ,; ", []),
        ("()", []),
        ("(no one)", []),
        ("a@b,", [plain("a", "b")]),
        ("a@b (never ends", [plain("a", "b", "never ends")]),
        ('"never ends <a@b>', [plain("never ends <a@b>", "")]),
        ("<a@b", [plain("a", "b")]),
        ("<a@b> rest", [plain("a", "b")]),
        ("a@[never ends", [plain("a", "[never ends")]),
        ("a > b@c", [plain("ab", "c")]),
    ],
)
def test_addresses_are_parsed(text: str, expected: list[Address]) -> None:
    assert parse_addresses(text.encode()) == expected


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("abc .,\"\\<>@:;()'", max_size=8).map(lambda name: " ".join(name.split())),
            st.from_regex(r"[a-z0-9+_-]{1,5}(\.[a-z]{1,3})?@[a-z]{1,5}\.[a-z]{2}", fullmatch=True),
        ),
        min_size=1,  # from an empty list, Python 3.11.2 makes one empty address
        max_size=4,
    )
)
def test_addresses_are_read_like_the_email_package_does(pairs: list[tuple[str, str]]) -> None:
    text = ", ".join(formataddr(pair) for pair in pairs)
    ours = [
        ((address.name or b"").decode(), b"%b@%b" % (address.mailbox or b"", address.host or b""))
        for address in parse_addresses(text.encode())
    ]
    assert ours == [(name, address.encode()) for name, address in getaddresses([text])]


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b'"', b"(", b"<", b"\\", b"@", b":", b";", b",", b"["]))
def test_hostile_addresses_are_parsed_and_groups_are_closed(text: bytes, sign: bytes) -> None:
    for hostile in (text, text.replace(b"\x00", sign), sign + text + sign):
        open_groups = 0
        for address in parse_addresses(hostile):
            open_groups += (address.host is None) * (-1 if address.mailbox is None else 1)
            assert open_groups in {0, 1}
        assert open_groups == 0


@pytest.mark.parametrize(
    "unit", [b"a@b,", b'\\"', b"(", b"<@a,", b"a@", b"a b@", b'"', b":", b"a:;", b"<", b"[", b"\\("]
)
def test_number_of_parsed_addresses_is_bounded(unit: bytes) -> None:
    assert len(parse_addresses(unit * (1_000_000 // len(unit)))) <= MAX_ADDRESSES + 1


def listed(*addresses: Address) -> Value:
    return (Adjacent(tuple(tuple(address) for address in addresses)),)


FULL_HEADER = (
    b"Date: Mon, 7 Feb 1994 21:52:25 -0800 (PST)\r\nSubject: a\r\n\tb \r\nTo: a@x\r\nCc: b@x\r\nBcc: c@x\r\n"
    b"In-Reply-To: <1@x>\r\nMESSAGE-ID: <2@x>\r\n"
)

A, B, C = plain("a", "x"), plain("b", "x"), plain("c", "x")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", (None,) * 10),
        (b"From: a@x\r\n", (None, None, listed(A), listed(A), listed(A), None, None, None, None, None)),
        (
            b"Sender: b@x\r\nFrom: a@x\r\nReply-To: c@x\r\n",
            (None, None, listed(A), listed(B), listed(C), None, None, None, None, None),
        ),
        (
            b"Sender:\r\nFrom: a@x, b@x\r\nReply-To: \r\nTo:\r\n",
            (None, None, listed(A, B), listed(A, B), listed(A, B), None, None, None, None, None),
        ),
        (b"Subject:\r\nDate: \r\n", (b"", b"", None, None, None, None, None, None, None, None)),
        (
            FULL_HEADER,
            (
                b"Mon, 7 Feb 1994 21:52:25 -0800 (PST)",
                b"a\tb",
                None,
                None,
                None,
                listed(A),
                listed(B),
                listed(C),
                b"<1@x>",
                b"<2@x>",
            ),
        ),
        (b"Subject: first\r\nSubject: second\r\n", (None, b"first", *(None,) * 8)),
        (b"Subject: a\x00b\rc\r\n", (None, b"abc", *(None,) * 8)),
    ],
)
def test_envelope_is_made_from_the_header(header: bytes, expected: Value) -> None:
    assert envelope(message_header(header + b"\r\nTo: not@header\r\n")) == expected


def test_envelope_of_the_example_in_rfc_3501() -> None:
    header = (
        b"Date: Wed, 17 Jul 1996 02:23:25 -0700 (PDT)\r\n"
        b"From: Terry Gray <gray@cac.washington.edu>\r\n"
        b"Subject: IMAP4rev1 WG mtg summary and minutes\r\n"
        b"To: imap@cac.washington.edu\r\n"
        b"cc: minutes@CNRI.Reston.VA.US, John Klensin <KLENSIN@MIT.EDU>\r\n"
        b"Message-Id: <B27397-0100000@cac.washington.edu>\r\n\r\n"
    )
    gray = listed(plain("gray", "cac.washington.edu", "Terry Gray"))
    assert envelope(message_header(header)) == (
        b"Wed, 17 Jul 1996 02:23:25 -0700 (PDT)",
        b"IMAP4rev1 WG mtg summary and minutes",
        gray,
        gray,
        gray,
        listed(plain("imap", "cac.washington.edu")),
        listed(plain("minutes", "CNRI.Reston.VA.US"), plain("KLENSIN", "MIT.EDU", "John Klensin")),
        None,
        None,
        b"<B27397-0100000@cac.washington.edu>",
    )


@pytest.mark.parametrize("raw", corpus().values(), ids=corpus())
def test_senders_of_the_corpus_equal_those_of_the_email_package(raw: bytes) -> None:
    header = message_header(raw)
    value = header.value(b"from") or b""
    ours = [(address.name or b"", address.mailbox, address.host) for address in parse_addresses(value)]
    theirs = getaddresses([value.decode("latin-1")]) if value else []
    assert ours == [(name.encode("latin-1"), *split(address.encode("latin-1"))) for name, address in theirs]


def split(address: bytes) -> tuple[bytes, bytes]:
    local, _, host = address.rpartition(b"@") if b"@" in address else (address, b"", b"")
    return local, host
