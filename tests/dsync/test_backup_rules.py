"""A mailbox as a backup leaves it: with the mails of the master, and no others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.rules.mails.backup import plan_backup
from replicator.dsync.rules.mails.comparison import ChangesSince, Comparison, concerned
from replicator.dsync.rules.mails.flags import FlagChanges
from replicator.dsync.rules.mails.plan import Known
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import ListedMessage, Listing

Mails = dict[int, tuple[bytes, frozenset[str]]]
"""GUID and flags by UID."""

GUIDS = [bytes([number]) * 16 for number in range(6)]
MAILS: st.SearchStrategy[Mails] = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(GUIDS), st.frozensets(st.sampled_from("ab"))),
    unique_by=(lambda one: one[0], lambda one: one[1]),
).map(lambda mails: {uid: (guid, flags) for uid, guid, flags in sorted(mails)})


def numbers(mails: Mails, more: int = 0) -> Mailbox:
    uidnext = max(mails, default=0) + 1 + more
    return Mailbox(bytes(16), 1, uidnext, len(mails), uidnext, 9)


def backed_up(own: Mails, more: int, master: Mails, changes: list[MailChange], state: MailboxState | None) -> Mails:
    """Return the mails of this side after the backup. `more`: UIDs that have been given besides."""
    stored = Listing.of(ListedMessage(uid, guid, 1, flags, 1, 1) for uid, (guid, flags) in own.items())
    reading = Comparison(stored, {}) if state is None else ChangesSince(state.last_common_uid)
    for each in changes:
        reading.take(each)
    told = reading.finish()
    known = Known(numbers(own, more), concerned(stored, told) if state is None else stored, GuidsByUid(), {})
    plan = plan_backup(known, numbers(master), told, state)

    def changes_of(uid: int) -> FlagChanges:
        return next((change for change, uids in plan.flags.items() if uid in uids), FlagChanges())

    after = {
        uid: (guid, (flags | changes_of(uid).added) - changes_of(uid).removed)
        for uid, (guid, flags) in own.items()
        if uid not in plan.expunged
    }
    uidnext = known.numbers.uidnext
    for one in plan.placed:
        assert one.uid >= uidnext, "UIDs only grow"
        assert one.comes
        assert one.peers is not None
        after[one.uid], uidnext = (one.guid, told.changes.by_uid(one.peers).flags), one.uid + 1
    assert plan.uidnext >= uidnext
    return after


def save(uid: int, mail: tuple[bytes, frozenset[str]]) -> MailChange:
    return MailChange(ChangeType.SAVE, uid, mail[0].hex(), flags=mail[1])


@given(MAILS, st.integers(0, 3), MAILS)
def test_without_a_state(own: Mails, more: int, master: Mails) -> None:
    after = backed_up(own, more, master, [save(*one) for one in master.items()], None)
    assert {*after.values()} == {*master.values()}
    if max(own, default=0) + more < min(master, default=99):
        assert after == master, "nothing is in the way of the UIDs"


@given(st.data())
def test_with_a_state(data: st.DataObject) -> None:
    before = data.draw(MAILS)
    common = max(before, default=0)
    state = MailboxState(bytes(16), 1, common, 5)
    gone = data.draw(st.frozensets(st.sampled_from(sorted(before)))) if before else frozenset()
    flagged = {uid: data.draw(st.frozensets(st.sampled_from("ab"))) for uid in before if uid not in gone}
    left = [guid for guid in GUIDS if guid not in {mail[0] for mail in before.values()}]
    new = {common + at: (guid, frozenset[str]()) for at, guid in enumerate(data.draw(st.permutations(left)), 1)}
    master = {uid: (before[uid][0], flags) for uid, flags in flagged.items()} | new
    changes = [MailChange(ChangeType.EXPUNGE, uid) for uid in gone]
    changes += [MailChange(ChangeType.FLAGS, uid, before[uid][0].hex(), flags=flags) for uid, flags in flagged.items()]
    changes += [save(*one) for one in new.items()]
    others = data.draw(st.integers(0, 2))  # mails that only this side has got
    own = before | {common + 1 + at: (b"other %010d" % at, frozenset[str]()) for at in range(others)}
    after = backed_up(own, 0, master, sorted(changes, key=lambda change: change.uid), state)
    assert {*after.values()} == {*master.values()}
    if not others:
        assert after == master
