"""Decisions: the same on both sides, and as a plain reading of the rules says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.rules.mails.comparison import ChangesSince, Comparison, Told, concerned
from replicator.dsync.rules.mails.flags import NO_FLAGS, FlagSide, merged_flags
from replicator.dsync.rules.mails.merging import plan_merge
from replicator.dsync.rules.mails.new_mails import NewMail, NewUids
from replicator.dsync.rules.mails.placed_mails import Placed
from replicator.dsync.rules.mails.plan import Known, Plan
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange
from replicator.mail.dovecot_guids import COPIES_MAX, guid_of, guid_of_copy
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import NO_MESSAGES, ListedMessage, Listing

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


def guid(name: str) -> str:
    return name.encode().hex().rjust(32, "0")


def last_common_uid(changes: list[MailChange], own: dict[int, str], expunged: dict[int, str]) -> int:
    mails = Listing.of(
        ListedMessage(uid, bytes.fromhex(guid(name)), 1, NO_FLAGS, 0, 0) for uid, name in sorted(own.items())
    )
    comparison = Comparison(mails, {uid: bytes.fromhex(guid(name)) for uid, name in expunged.items()})
    for change in changes:
        comparison.take(change._replace(guid=guid(change.guid)))
    return comparison.finish().common_uid


def place(own: list[NewMail], peers: list[NewMail], *, own_uidnext: int, peer_uidnext: int) -> tuple[list[Placed], int]:
    found = NewUids(own, peers, own_uidnext=own_uidnext, peer_uidnext=peer_uidnext)
    return sorted(found, key=lambda one: one.uid), found.uidnext


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
    return [NewMail(guid, first + at, guid.encode()) for at, guid in enumerate(guids)]


def test_a_mail_that_both_have_is_counted_once() -> None:
    own, peers = new_mails([*"abfcd"], 1), new_mails([*"abfce"], 1)
    placed, _ = place(own, peers, own_uidnext=8, peer_uidnext=6)
    assert [(one.guid, one.uid) for one in placed[-2:]] == [(b"d", 8), (b"e", 9)]
    mirrored, _ = place(peers, own, own_uidnext=6, peer_uidnext=8)
    assert [(one.guid, one.uid) for one in mirrored[-2:]] == [(b"d", 8), (b"e", 9)]


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
    placed, uidnext = place([NewMail("64d3", 4, b"64d3")], [NewMail("68af", 4, b"68af")], own_uidnext=5, peer_uidnext=5)
    assert [(one.guid, one.uid) for one in placed] == [(b"64d3", 5), (b"68af", 6)]
    assert uidnext == 7


def test_a_mail_keeps_a_uid_that_is_free_on_the_other_side() -> None:
    placed, uidnext = place([NewMail("x", 4, b"x"), NewMail("y", 5, b"y")], [], own_uidnext=6, peer_uidnext=4)
    assert [(one.uid, one.own) for one in placed] == [(4, 4), (5, 5)]
    assert uidnext == 6


def stored(uid: int, guid: int, modseq: int = 1) -> ListedMessage:
    return ListedMessage(uid, bytes([guid]) * 16, modseq, NO_FLAGS, 0, 0)


def known(*mails: ListedMessage) -> Known:
    uidnext = max(mail.uid for mail in mails) + 1
    return Known(Mailbox(bytes(16), 1, uidnext, len(mails), uidnext, 99), Listing.of(mails), GuidsByUid(), {})


def planned(own: Known, changes: list[MailChange], state: MailboxState | None = None, uidnext: int = 9) -> Plan:
    told = compared(own.mails, changes) if state is None else since(state, changes)
    own = replace(own, mails=concerned(own.mails, told) if state is None else own.mails)
    told.identify(own.mails, {})
    return plan_merge(own, Mailbox(bytes(16), 1, uidnext, 0, uidnext, 99), told, state)


def compared(mails: Listing, changes: list[MailChange]) -> Told:
    comparison = Comparison(mails, {})
    for change in changes:
        comparison.take(change)
    return comparison.finish()


def since(state: MailboxState, changes: list[MailChange]) -> Told:
    reading = ChangesSince(state.last_common_uid)
    for change in changes:
        reading.take(change)
    return reading.finish()


def test_an_expunge_takes_no_mail_that_has_come_since() -> None:
    """Without a GUID, it tells of the UID alone, and another mail may have got that here."""
    state = MailboxState(bytes(16), 1, 3, 50)
    for guid, expunged in (("", [2]), ("02" * 16, [2, 3]), ("05" * 16, [])):
        gone = [MailChange(ChangeType.EXPUNGE, uid, guid.replace("2", f"{uid}")) for uid in (2, 3)]
        plan = planned(known(stored(1, 1), stored(2, 2, 50), stored(3, 3, 51)), gone, state)
        assert [*plan.expunged] == expunged
        assert [one.own for one in plan.placed] == sorted({2, 3} - {*expunged})
        assert all(one.uid >= 9 for one in plan.placed)
        assert plan.common_uid == 8


def test_guids_are_told_as_the_peer_writes_them() -> None:
    """Those of equal mails, too, of which nothing else is kept."""
    names = ["1795822339.M435804P29515.vm", "1795822339.M435804P29516.vm,S=21,W=24", "03" * 16]
    mails = Listing.of(ListedMessage(uid, guid_of(name), 1, NO_FLAGS, 0, 0) for uid, name in enumerate(names, 1))
    flags = [NO_FLAGS, frozenset({"a"}), NO_FLAGS]
    told = compared(mails, [MailChange(ChangeType.SAVE, uid, names[uid - 1], 1, flags[uid - 1]) for uid in (1, 2, 3)])
    told.identify(mails, {})
    assert [change.uid for change in told.changes] == [2]
    assert [told.name_of(mail) for mail in mails] == names


def test_a_mail_that_the_master_has_elsewhere_is_not_expunged() -> None:
    """It is the source of a copy that is not here."""
    changes = [MailChange(ChangeType.SAVE, 2, "01" * 16), MailChange(ChangeType.SAVE, 3, "03" * 16)]
    plan = planned(known(stored(1, 1), stored(3, 3)), changes, uidnext=4)
    assert ([*plan.expunged], [*plan.placed]) == ([], [Placed(b"\1" * 16, 4, own=1)])


def test_copies_are_told_by_the_names_of_their_sources() -> None:
    name = "1795822339.M435804P29515.vm"
    mail = ListedMessage(2, guid_of_copy(guid_of(name), 1), 1, NO_FLAGS, 0, 0)
    told = compared(Listing.of([mail]), [MailChange(ChangeType.SAVE, 2, name)])
    told.identify(Listing.of([mail]), {})
    assert (len(told.changes), told.name_of(mail)) == (0, name)


def test_copies_have_guids_of_their_own() -> None:
    source, other = b"\x0a" * 16, b"\x0b" * 16
    guids = (source, source, other, source)
    saves = [MailChange(ChangeType.SAVE, uid, guid.hex()) for uid, guid in enumerate(guids, 1)]
    told = compared(NO_MESSAGES, saves)
    told.identify(NO_MESSAGES, {})
    own = {change.uid: change.guid for change in told.changes}
    assert own[1] == source
    assert own[3] == other
    assert told.sources == {own[2]: source, own[4]: source}
    assert len({*own.values()}) == 4
    mails = Listing.of(ListedMessage(uid, guid, 1, NO_FLAGS, 0, 0) for uid, guid in own.items())
    again = compared(mails, saves[1:])
    assert (len(again.changes), again.sources) == (0, told.sources), "found again without the source"
    many = [MailChange(ChangeType.SAVE, uid, source.hex()) for uid in range(1, COPIES_MAX + 3)]
    plan = planned(known(stored(1, 10)), many, uidnext=len(many) + 1)
    assert sum(one.comes for one in plan.placed) == COPIES_MAX
    assert plan.common_uid == COPIES_MAX + 1, "the last one is a copy too many"
