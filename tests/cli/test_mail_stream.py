"""The mail that a node sends, however its octets arrive and wherever they end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgpack
import pytest

from replicator.cli.api.mail_stream import MailUnreadableError, mails


class BrokenError(Exception):
    pass


def head(uid: int, body: bytes) -> Sequence[object]:
    return uid, ["\\Seen"], 5, len(body), hashlib.sha256(body).digest()


def sent(*values: object, step: int = 1 << 20) -> Iterator[bytes]:
    octets = b"".join(map(msgpack.packb, values))
    return (octets[start : start + step] for start in range(0, len(octets), step))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_mail_arrives_in_any_pieces(step: int) -> None:
    answer = sent(head(1, b"ab"), b"a", b"b", head(2, b""), head(7, b"c"), b"c", None, step=step)
    found = [
        (mail.uid, mail.flags, mail.received_ms, mail.size_bytes, b"".join(mail.pieces))
        for mail in mails(answer, BrokenError)
    ]
    seen = frozenset({"\\Seen"})
    assert found == [(1, seen, 5, 2, b"ab"), (2, seen, 5, 0, b""), (7, seen, 5, 1, b"c")]


def test_no_mail_is_an_answer_too() -> None:
    assert [*mails(sent(None), BrokenError)] == []


def test_mail_whose_pieces_nobody_takes_is_skipped() -> None:
    found = mails(sent(head(1, b"ab"), b"a", b"b", head(2, b"c"), b"c", None), BrokenError)
    assert [mail.uid for mail in found] == [1, 2]


def test_mail_that_the_node_cannot_read_is_told_where_it_ends() -> None:
    answer = sent(head(1, b"ab"), b"a", "the disk is damaged", head(2, b"x"), b"y", head(3, b"c"), b"c", None)
    found = list[object]()
    for mail in mails(answer, BrokenError):
        try:
            found.append(b"".join(mail.pieces))
        except MailUnreadableError as error:
            found.append(str(error))
    assert found[0] == "the disk is damaged"
    assert str(found[1]).startswith("other octets arrive than were stored")
    assert found[2] == b"c"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [head(1, b"ab"), b"a"],
        [head(1, b""), head(2, b"")],
        [b"a", None],
        [[1, 2], None],
        ["why", None],
        [("/../x", *head(1, b"")[1:]), None],
        [(1, [5], *head(1, b"")[2:]), None],
    ],
)
def test_what_is_no_whole_answer_is_broken(values: list[object]) -> None:
    with pytest.raises(BrokenError):
        [b"".join(mail.pieces) for mail in mails(sent(*values), BrokenError)]


def test_octets_that_are_no_messagepack_are_broken() -> None:
    with pytest.raises(BrokenError):
        next(mails(iter([b"\xc1"]), BrokenError))
