"""Numbers of mailboxes on a link, in each direction."""

from __future__ import annotations

import pytest

from protocol.commands import Mbox
from protocol.stream_codec import ProtocolError
from replicator.replication.links import mailbox_numbers
from replicator.replication.links.mailbox_numbers import MAX_NUMBERS, ReceivedNumbers, SentNumbers
from replicator.store.db.entry_validation import USER_MAX_BYTES
from replicator.store.db.queries import MailboxKey
from resync.entry import tree_id

A, B, C = (MailboxKey("alice", letter * 16, 1) for letter in (b"a", b"b", b"c"))


def mbox(number: int, key: MailboxKey) -> Mbox:
    return Mbox(number, key.user, "Work", key.mailbox_id, key.uidvalidity)


def test_numbers_are_given_from_one_on_and_stay() -> None:
    sent = SentNumbers()
    assert (sent.use(A), A in sent) == (None, False)
    assert [sent.give(A), sent.give(B)] == [1, 2]
    assert [sent.use(A), sent.use(B), sent.use(A)] == [1, 2, 1]
    assert (A in sent, C in sent) == (True, False)
    assert sent.mailboxes() == {1: A, 2: B}


def test_least_recently_used_mailbox_gives_up_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_numbers, "MAX_NUMBERS", 2)
    sent = SentNumbers()
    sent.give(A)
    sent.give(B)
    sent.use(A)
    assert sent.give(C) == 2
    assert (sent.use(B), sent.mailboxes()) == (None, {1: A, 2: C})
    assert sent.give(B) == 1, "nobody has used A since"


def test_peers_number_stands_for_the_mailbox_told_last() -> None:
    received = ReceivedNumbers()
    tree = MailboxKey("alice", tree_id("alice"), 0)
    for number, key in ((1, A), (MAX_NUMBERS, tree), (1, B)):
        received.learn(mbox(number, key))
    assert [received.key_of(1), received.key_of(MAX_NUMBERS)] == [B, tree]
    assert received.mailboxes() == {1: B, MAX_NUMBERS: tree}
    with pytest.raises(ProtocolError, match="no MBOX has assigned mailbox number 2"):
        received.key_of(2)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (mbox(0, A), "mailbox number 0 is not between 1 and 10000"),
        (mbox(MAX_NUMBERS + 1, A), "mailbox number 10001 is not between 1 and 10000"),
        (mbox(7, MailboxKey("alice", tree_id("bob"), 0)), "7 is a tree whose id does not belong to its user"),
        (mbox(7, A._replace(user="ä" * (USER_MAX_BYTES // 2 + 1))), f"name is longer than {USER_MAX_BYTES} bytes"),
    ],
)
def test_wrong_mailbox_gets_no_number(wrong: Mbox, why: str) -> None:
    received = ReceivedNumbers()
    received.learn(mbox(7, A))
    with pytest.raises(ProtocolError, match=why):
        received.learn(wrong)
    assert received.mailboxes() == {7: A}
