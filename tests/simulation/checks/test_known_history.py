"""Tests of the number of copies that moves by nodes explain, in a history in which one mail is moved."""

from __future__ import annotations

from hashlib import sha256

import pytest

from protocol.values import Dot, UidSet
from resync.entry import Entry, MailAdd, MailDel
from resync.row import Row
from tests.simulation.checks.known_history import KnownHistory
from tests.simulation.records.history import History
from tests.simulation.records.ledger import Ledger

ORIGIN, USER, BODY, GUID = "dc1.1", "alice", b"a mail", b"g" * 16
DELETED, NAMESAKE, THIRD = b"d" * 16, b"n" * 16, b"t" * 16  # mailboxes


class Moves:
    """A history that begins with a mail in the deleted folder, and the number of its last entry."""

    def __init__(self) -> None:
        self.history = History(unnoticed_s=1.0)
        self.last = 0
        self.saved = self.add(DELETED)

    def _number(self, mailbox_id: bytes, change: MailAdd | MailDel, *shown: Dot) -> Dot:
        """Number an entry where UID 1 means the mail that these entries have put there, and return it."""
        self.last += 1
        entry = Entry(Dot(ORIGIN, self.last), (), self.last, self.last, USER, mailbox_id, 1, (change,))
        self.history.numbered(entry, {1: tuple((dot, 0) for dot in shown)})
        return entry.dot

    def add(self, mailbox_id: bytes) -> Dot:
        """Put the mail into a mailbox, and return its entry."""
        return self._number(mailbox_id, MailAdd(1, GUID, 0, (), len(BODY), sha256(BODY).digest(), copied=False))

    def copy(self, source: bytes, destination: bytes) -> Dot:
        """Copy the mail as a node does that moves it, and return the entry."""
        self.history.moved[GUID].add((source, destination))
        return self.add(destination)

    def expunge(self, mailbox_id: bytes, added: Dot) -> None:
        """Expunge the mail that this entry has put into the mailbox."""
        self._number(mailbox_id, MailDel(UidSet.of([1])), added)

    def check(self, *mailboxes: bytes, last: int | None = None) -> None:
        """Check the end, with the mail in these mailboxes. `last`: the last entry that any disk has."""
        ledger = Ledger()
        content_hash = ledger.asks_to_save(BODY)
        row = Row(1, self.saved, 0, GUID, self.saved, 1, {}, 0, len(BODY), content_hash)
        known = KnownHistory(self.history, {ORIGIN: self.last if last is None else last}, {})
        rows = {mailbox_id: [row] for mailbox_id in mailboxes}
        ledger.check(rows, rows.keys(), lambda *_: False, known.extra_copies())


@pytest.fixture
def moves() -> Moves:
    """Return a history in which a node has moved the mail: entry 2 is the copy, entry 3 the expunge."""
    moves = Moves()
    moves.copy(DELETED, NAMESAKE)
    moves.expunge(DELETED, moves.saved)
    return moves


def test_moved_mail_is_there_once(moves: Moves) -> None:
    moves.check(NAMESAKE)
    with pytest.raises(AssertionError, match="there 2 times, saves and copies explain 1"):
        moves.check(DELETED, NAMESAKE)


def test_moved_mail_may_be_back_where_disks_lost_its_expunge(moves: Moves) -> None:
    moves.check(DELETED, NAMESAKE, last=2)
    with pytest.raises(AssertionError, match="there 3 times, saves and copies explain 2"):
        moves.check(DELETED, NAMESAKE, THIRD, last=2)


def test_moved_mail_is_there_once_where_disks_lost_its_copy_as_well(moves: Moves) -> None:
    moves.check(DELETED, last=1)
    with pytest.raises(AssertionError, match="there 2 times, saves and copies explain 1"):
        moves.check(DELETED, NAMESAKE, last=1)


def test_moved_mail_is_there_once_where_disks_lost_only_one_of_two_expunges(moves: Moves) -> None:
    moves.expunge(DELETED, moves.saved)
    moves.check(NAMESAKE, last=3)
    with pytest.raises(AssertionError, match="there 2 times, saves and copies explain 1"):
        moves.check(DELETED, NAMESAKE, last=3)


def test_mail_that_was_never_expunged_is_no_second_copy() -> None:
    moves = Moves()
    moves.copy(DELETED, NAMESAKE)
    moves.check(DELETED, last=1)  # no disk has the copy
    with pytest.raises(AssertionError, match="there 2 times, saves and copies explain 1"):
        moves.check(DELETED, NAMESAKE)


def test_mail_may_stay_in_a_folder_that_was_united_with_another_and_is_separate_again() -> None:
    moves = Moves()
    moves.copy(DELETED, NAMESAKE)
    moves.history.emptied.add(DELETED)
    moves.check(DELETED, NAMESAKE)
    with pytest.raises(AssertionError, match="there 3 times, saves and copies explain 2"):
        moves.check(DELETED, NAMESAKE, THIRD)


def test_mail_that_no_node_has_moved_is_no_second_copy_where_disks_lost_an_expunge() -> None:
    moves = Moves()
    moves.add(NAMESAKE)
    moves.expunge(DELETED, moves.saved)
    with pytest.raises(AssertionError, match="there 2 times, saves and copies explain 1"):
        moves.check(DELETED, NAMESAKE, last=2)


def test_mail_may_be_in_each_folder_to_which_nodes_have_moved_it(moves: Moves) -> None:
    moves.copy(DELETED, THIRD)
    moves.check(NAMESAKE, THIRD)
    with pytest.raises(AssertionError, match="there 3 times, saves and copies explain 2"):
        moves.check(DELETED, NAMESAKE, THIRD)


def test_mail_that_was_moved_on_is_there_once() -> None:
    moves = Moves()
    copied = moves.copy(DELETED, NAMESAKE)
    moves.expunge(DELETED, moves.saved)
    moves.copy(NAMESAKE, THIRD)
    moves.expunge(NAMESAKE, copied)
    moves.check(THIRD)
    with pytest.raises(AssertionError, match="there 2 times, saves and copies explain 1"):
        moves.check(NAMESAKE, THIRD)


def test_mail_may_be_where_it_came_again_after_it_was_moved(moves: Moves) -> None:
    moves.add(DELETED)
    moves.check(DELETED, NAMESAKE)
