"""Decisions: the same on both sides, and as a plain reading of the rules says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.rules.common import last_common_uid
from replicator.dsync.rules.flags import FlagSide, merged_flags
from replicator.dsync.rules.new_mails import NewMail, place
from replicator.dsync.wire.items import ChangeType, MailChange

FLAGS = st.frozensets(st.sampled_from("abc"))
SIDES = st.builds(FlagSide, FLAGS, st.integers(1, 3), FLAGS, FLAGS).map(
    lambda side: FlagSide(side.flags, side.modseq, side.added & side.flags, side.removed - side.flags)
)


def plainly_merged(master: FlagSide, remote: FlagSide) -> frozenset[str]:
    """Return the merged flags, flag by flag."""
    found = set()
    later = remote if remote.modseq > master.modseq else master
    for flag in "abc":
        if (flag in master.flags) == (flag in remote.flags):
            is_set = flag in master.flags
        else:
            added = flag in master.added or flag in remote.added
            removed = flag in master.removed or flag in remote.removed
            is_set = added if added != removed else flag in later.flags
        if is_set:
            found.add(flag)
    return frozenset(found)


@given(SIDES, SIDES)
def test_flags(master: FlagSide, remote: FlagSide) -> None:
    assert merged_flags(master, remote) == plainly_merged(master, remote)


def changes_of(mails: dict[int, str], gone: dict[int, str]) -> list[MailChange]:
    saves = [MailChange(ChangeType.SAVE, uid, guid) for uid, guid in mails.items()]
    expunges = [MailChange(ChangeType.EXPUNGE, uid, guid) for uid, guid in gone.items()]
    return sorted(saves + expunges, key=lambda change: change.uid)


@given(st.data())
def test_the_last_common_uid_is_found(data: st.DataObject) -> None:
    """Two sides that were equal up to a UID, and have expunged mails and got new ones since."""
    common = data.draw(st.integers(0, 8), "common")
    kept = [data.draw(st.frozensets(st.integers(1, 8)), name) for name in ("own", "peer")]
    sides = []
    for name, stays in zip("op", kept, strict=True):
        count = data.draw(st.integers(0, 4))
        new = {common + number: f"{name}{number}" for number in range(1, count + 1)}
        old = {uid: f"c{uid}" for uid in range(1, common + 1)}
        gone = {uid: guid for uid, guid in old.items() if uid not in stays}
        mails = {uid: guid for uid, guid in old.items() if uid in stays} | new
        sides.append((mails, gone))
    (own, own_gone), (peer, peer_gone) = sides
    here = last_common_uid(changes_of(peer, peer_gone), own, own_gone)
    there = last_common_uid(changes_of(own, own_gone), peer, peer_gone)
    assert here == there == common


def test_unknown_mails_do_not_end_the_search_while_higher_ones_are_left() -> None:
    changes = changes_of({1: "a", 2: "lost here", 3: "c"}, {})
    assert last_common_uid(changes, {1: "a", 3: "c"}, {}) == 3
    assert last_common_uid(changes, {1: "a"}, {}) == 1
    assert last_common_uid(changes, {1: "a"}, {2: "another"}) == 1
    assert last_common_uid(changes, {1: "a", 2: "another", 3: "c"}, {}) == 1


def new_mails(guids: list[str], first: int) -> list[NewMail]:
    return [NewMail(guid, first + at, guid) for at, guid in enumerate(guids)]


def test_a_mail_that_both_have_is_counted_once() -> None:
    own, peers = new_mails([*"abfcd"], 1), new_mails([*"abfce"], 1)
    placed, _ = place(own, peers, own_uidnext=8, peer_uidnext=6)
    assert [(one.guid, one.uid) for one in placed[-2:]] == [("d", 8), ("e", 9)]
    mirrored, _ = place(peers, own, own_uidnext=6, peer_uidnext=8)
    assert [(one.guid, one.uid) for one in mirrored[-2:]] == [("d", 8), ("e", 9)]


@given(st.data())
def test_both_sides_give_new_mails_the_same_uids(data: st.DataObject) -> None:
    first = data.draw(st.integers(1, 4))
    guids = st.lists(st.sampled_from("abcdefgh"), unique=True)
    own = new_mails(data.draw(guids), first + data.draw(st.integers(0, 2)))
    peers = new_mails(data.draw(guids), first)
    own_next, peer_next = first + len(own) + 2, first + len(peers)
    placed, uidnext = place(own, peers, own_uidnext=own_next, peer_uidnext=peer_next)
    mirrored, same_uidnext = place(peers, own, own_uidnext=peer_next, peer_uidnext=own_next)
    assert [(one.guid, one.uid, one.own, one.peers) for one in placed] == [
        (one.guid, one.uid, one.peers, one.own) for one in mirrored
    ]
    assert uidnext == same_uidnext
    assert {one.guid for one in placed} == {mail.guid for mail in own + peers}, "nothing is lost"
    assert len({one.uid for one in placed}) == len(placed)
    assert all(one.uid < uidnext for one in placed)
    for one in placed:
        assert one.own == one.uid or one.uid >= own_next, "UIDs only grow here"
        assert one.peers == one.uid or one.uid >= peer_next, "and there"


def test_two_mails_with_one_uid_get_new_ones() -> None:
    placed, uidnext = place([NewMail("64d3", 4, "64d3")], [NewMail("68af", 4, "68af")], own_uidnext=5, peer_uidnext=5)
    assert [(one.guid, one.uid) for one in placed] == [("64d3", 5), ("68af", 6)]
    assert uidnext == 7


def test_a_mail_keeps_a_uid_that_is_free_on_the_other_side() -> None:
    placed, uidnext = place([NewMail("x", 4, "x"), NewMail("y", 5, "y")], [], own_uidnext=6, peer_uidnext=4)
    assert [(one.uid, one.own) for one in placed] == [(4, 4), (5, 5)]
    assert uidnext == 6
