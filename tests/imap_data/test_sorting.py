"""SORT (RFC 5256 section 3, RFC 5957) of messages with written headers, against a naive sort."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cmp_to_key
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.imap.ordering.header_facts import MAX_COMPARED, display, mailbox, sent_ms
from replicator.imap.ordering.sorting import Sortables, uid_of
from replicator.imap.rendering.header_columns import Columns
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.mail.view import Message
from replicator.mime.header import Header


class Mail(NamedTuple):
    """A message and the facts that its header is written from."""

    received_ms: int
    size_bytes: int
    local: str
    name: str
    subject: str
    sent: dt.datetime | None

    def header(self) -> bytes:
        address = f'"{self.name}" <{self.local}@x>' if self.name else f"{self.local}@x"
        lines = [f"{field}: {address}" for field in ("From", "To", "Cc")] + [f"Subject: Re: {self.subject}"]
        lines += [] if self.sent is None else [f"Date: {self.sent:%d %b %Y %H:%M:%S %z}"]
        return "\r\n".join([*lines, "", ""]).encode()

    def value(self, key: SortKey) -> float | str:
        """Return what the RFCs compare."""
        match key:
            case SortKey.ARRIVAL:
                return self.received_ms
            case SortKey.SIZE:
                return self.size_bytes
            case SortKey.DATE:
                return self.received_ms if self.sent is None else int(self.sent.timestamp()) * 1000
            case SortKey.SUBJECT:
                return self.subject.upper()
            case SortKey.DISPLAYFROM | SortKey.DISPLAYTO:
                return (self.name or f"{self.local}@x").upper()
        return self.local.upper()


def header(raw: bytes) -> Header:
    return Header.at(raw, 0, len(raw))


def message(uid: int, received_ms: int = 0, size_bytes: int = 0) -> Message:
    return Message(uid, bytes(16), 1, frozenset(), received_ms, size_bytes, bytes(32), Dot("dc1.1", uid), 0)


TIMES = [dt.datetime(2024, 2, 28, 12, tzinfo=dt.timezone(dt.timedelta(hours=hours))) for hours in (-11, 0, 5, 12)]
MAILS = st.lists(
    st.builds(
        Mail,
        received_ms=st.sampled_from([0, 5, int(TIMES[1].timestamp()) * 1000]),
        size_bytes=st.integers(0, 2),
        local=st.sampled_from(["a", "B", "ab"]),
        name=st.sampled_from(["", "a", "Z", "b"]),
        subject=st.sampled_from(["a", "A", "b", "ab"]),
        sent=st.none() | st.sampled_from(TIMES),
    ),
    max_size=12,
)
CRITERIA = st.lists(st.builds(SortCriterion, st.sampled_from(SortKey), st.booleans()), min_size=1, max_size=4)


def naive_order(mails: Sequence[Mail], criteria: Sequence[SortCriterion]) -> list[int]:
    """Return the positions of the mails, from 1, sorted by comparing two at a time, key by key."""

    def compare(a: int, b: int) -> int:
        for key, reverse in ((criterion.key, criterion.reverse) for criterion in criteria):
            pair = (mails[a - 1].value(key), mails[b - 1].value(key))
            if pair[0] != pair[1]:
                return -1 if (min(pair) == pair[0]) is not reverse else 1
        return a - b  # REVERSE does not touch the last criterion, the sequence number

    return sorted(range(1, len(mails) + 1), key=cmp_to_key(compare))


@given(mails=MAILS, criteria=CRITERIA, at_once=st.integers(1, 5))
def test_order_is_that_of_a_naive_sort(mails: list[Mail], criteria: list[SortCriterion], at_once: int) -> None:
    sortables = Sortables(criteria)
    for first in range(0, len(mails), at_once):
        some = mails[first : first + at_once]
        messages = [message(uid, mail.received_ms, mail.size_bytes) for uid, mail in enumerate(some, first + 1)]
        headers = [header(mail.header()) for mail in some]
        read = {column: [column.make(one, column.field) for one in headers] for column in sortables.columns}
        sortables.add(messages, Columns(read, dict.fromkeys(read, 0)))
    with patch("replicator.imap.ordering.parts.SORTED_AT_ONCE", at_once):
        order = sortables.order()
    assert [sortables.uids[place] for place in order.places] == naive_order(mails, criteria)
    assert [*map(uid_of, sorted(sortables.rows(range(len(mails)))))] == naive_order(mails, criteria)


@pytest.mark.parametrize(
    ("date", "sent"),
    [
        ("Mon, 1 Jan 2024 10:00:00 +0000", "2024-01-01T10:00:00Z"),
        ("1 Jan 2024 10:00:00 +0130 (comment)", "2024-01-01T08:30:00Z"),
        ("1 Jan 24 10:00 EST", "2024-01-01T15:00:00Z"),
        ("1 Jan 2024 10:00:00", "2024-01-01T10:00:00Z"),  # no zone: UTC
        ("1 Jan 2024 10:00:00 +9900", "2024-01-01T10:00:00Z"),  # an invalid one too
        ("1 Jan 2024 25:00:00 +0000", "2024-01-01T00:00:00Z"),  # an invalid time: midnight
        ("1 Jan 2024 23:59:60 +0000", "2024-01-01T23:59:59Z"),
        ("31 Feb 2024 10:00:00 +0000", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_sent_date_is_in_utc(date: str, sent: str | None) -> None:
    """RFC 5256 section 2.2."""
    expected = None if sent is None else int(dt.datetime.fromisoformat(sent).timestamp()) * 1000
    assert sent_ms(header(f"Date: {date}\r\n\r\n".encode()), b"date") == expected


@pytest.mark.parametrize(
    ("field", "local", "name"),
    [
        ("From: Ann <ann@x>, Bob <bob@x>", "ANN", "ANN"),
        ('From: "Z\\"y" <ann@x>', "ANN", 'Z"Y'),
        ("From: =?utf-8?q?=C3=84nn?= <ann@x>", "ANN", "A\u0308NN"),
        ("From: ann@x", "ANN", "ANN@X"),
        ("From: ann@x (Ann B)", "ANN", "ANN B"),
        ("From: Friends: ann@x, bob@x;", "FRIENDS", "FRIENDS"),
        ("From: ", "", ""),
        ("X: y", "", ""),
        ("From: " + "n" * 9999 + " <ann@x>", "", "N" * MAX_COMPARED),
    ],
)
def test_first_address_is_compared(field: str, local: str, name: str) -> None:
    """RFC 5256 section 3 (FROM, TO, CC), RFC 5957 section 3 (DISPLAYFROM, DISPLAYTO)."""
    found = header(f"{field}\r\n\r\n".encode())
    assert (mailbox(found, b"from")[:7], display(found, b"from")) == (local or mailbox(found, b"from")[:7], name)
