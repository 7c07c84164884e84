"""Checks of the final state by rules that know nothing of chains and merges.

They use `History` alone: a message is there if it was added and no client expunged it; a flag is as its last stamp
says; a folder is there unless a client deleted it. Entries that were only on lost disks are left out, unless a chain
says that it has seen them. A client was told that such an entry was safe only if as many disks had to be lost
(`History.acknowledge`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from protocol.stream_codec import Request, Response
from protocol.values import Dot, Stamp
from replicator.errors import ContentUnavailableError
from replicator.mail.mailstore import Folder, read_all
from replicator.store.attachments.sweep import sweep
from replicator.store.bodies.attachment_references import RecordedHolders
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from resync.entry import (
    NOWHERE,
    AnnotationState,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
)
from resync.row import Row
from tests.attachments.file_systems.memory import MemoryFiles
from tests.replication.cluster import Node
from tests.replication.network import decoded
from tests.simulation.checks.bodies import holds_bodies
from tests.simulation.checks.known_history import KnownHistory
from tests.simulation.checks.retention import end_retention
from tests.simulation.records.cache import Cache
from tests.simulation.records.history import FlagChange, History, Placement, TreeChange
from tests.simulation.records.watch import uidvalidity_of
from tests.store.harness import check_tally, check_usages, connection_of

if TYPE_CHECKING:
    from tests.simulation.world import World


LET_GO_S = 120.0  # longer than any task holds an unrecorded attachment, once no more faults happen


async def verify(world: World, caches: Iterable[Cache]) -> None:
    """Check a world in which all nodes run, are equal and at rest."""
    history = world.history
    for machine in world.up():
        node = machine.node
        context = node.store.context
        missing = {dot: what for dot, what in history.acknowledged.items() if context.get(dot.origin, 0) < dot.seq}
        unexcused = {dot: what for dot, what in missing.items() if dot not in history.lost}
        assert not unexcused, f"changes that clients heard OK for are lost: {unexcused}"
    node = world.up()[0].node  # the others are equal
    for machine in world.up():
        check_usages(machine.node.store)
        check_tally(machine.node.store)
    rows = _rows(node)
    chains = {chain.id: chain for chain in queries.chains_of(connection_of(node.store), None)}
    known = KnownHistory(history, node.store.context, chains)
    flags = _last_flag_changes(known)
    for mailbox_id in rows.keys() | known.mailboxes():
        _check_mailbox(known, mailbox_id, rows.get(mailbox_id, {}), flags)
    if not (world.plan.deception or world.plan.alters_histories):
        _check_histories(world)
    _check_uids(known, node, rows)
    _check_saved_once(history)
    _check_trees(known, node)
    _check_abandoned(known, rows)
    _check_ledger(world, known, node, rows)
    may_lack = history.has_lost_disks or world.plan.has_short_retention
    _check_missing_bodies(world, may_lack=may_lack)
    for machine in world.up():
        await _check_visibility(machine.node, rows, may_lack=may_lack)
    if world.plan.undeletes:
        await end_retention(world.up(), world.plan.content.keep_expunged_s)
    for machine in world.up():
        await _check_attachments(machine.node)
    await _check_caches(known, world, caches)


def _rows(node: Node) -> dict[bytes, dict[bytes, Row]]:
    connection = connection_of(node.store)
    mailboxes = [chain.id for chain in queries.chains_of(connection, None) if chain.uidvalidity]
    return {
        mailbox_id: {row.guid: row for row in queries.mailbox_rows(connection, mailbox_id)} for mailbox_id in mailboxes
    }


def _check_mailbox(
    known: KnownHistory, mailbox_id: bytes, rows: dict[bytes, Row], flags: dict[Placement, dict[str, FlagChange]]
) -> None:
    by_guid = known.by_guid(mailbox_id)
    unexplained = [row for row in rows.values() if row.guid not in by_guid]
    assert not unexplained, f"messages that nobody added: {unexplained}"
    for guid, placements in by_guid.items():
        row, left = rows.get(guid), {one for one in placements if not known.is_expunged(one)}
        assert row or not left, f"lost: {guid.hex()}, added as {placements}, and not expunged as {left}"
        assert left or not row, f"back: {guid.hex()}, expunged as {placements}"
        if row is not None:
            assert set(row.placements()) == left, f"{guid.hex()} stands for {row.placements()}, and {left} are left"
            dates = {known.history.added[one].saved_ms for one in placements}
            assert row.saved_ms in dates, f"{guid.hex()} has the save date {row.saved_ms}, and came at {dates}"
        if row is not None and len(left) == len(placements):
            expected = _last_stamped([flags.get(one, {}) for one in placements])
            assert row.visible_flags() == expected, f"{placements} has {row.visible_flags()}, not as last stamped"


def _last_flag_changes(known: KnownHistory) -> dict[Placement, dict[str, FlagChange]]:
    """Return the last change of each flag of each placement."""
    found: dict[Placement, dict[str, FlagChange]] = defaultdict(dict)
    for (placement, flag), changes in known.history.flagged.items():
        kept = [change for change in changes if known.has(change.dot)]
        if kept:
            found[placement][flag] = max(kept)
    return found


def _last_stamped(of_placements: Sequence[Mapping[str, FlagChange]]) -> set[str]:
    """Return the flags of a message that stands for several placements."""
    names = {flag for one in of_placements for flag in one}
    return {flag for flag in names if max(one[flag] for one in of_placements if flag in one).value}


def _check_histories(world: World) -> None:
    """Check that no entry named another history than a node had, and that each head's history is that of its entry."""
    assert not world.history.mismatches, f"{world.history.mismatches} entries named other histories than nodes had"
    for machine in world.up():
        connection = connection_of(machine.node.store)
        for chain in queries.chains_of(connection, None):
            entry = chain.head and queries.entry_at(connection, chain.head)
            assert entry is None or entry.history == chain.history, f"{machine.sid}: {chain.head} has another history"


def _check_saved_once(history: History) -> None:
    """Check that a SAVE that was retried, or undeleted, made one mail: clients never save the same body twice."""
    copies = {added.guid for added in history.added.values() if added.copied}
    guids: dict[bytes, set[bytes]] = defaultdict(set)
    for added in history.added.values():
        if added.guid not in copies:
            guids[added.content_hash].add(added.guid)
    twice = [content_hash.hex() for content_hash, found in guids.items() if len(found) > 1]
    assert not twice, f"bodies that were saved once became several mails: {twice}"


def _check_uids(known: KnownHistory, node: Node, rows: dict[bytes, dict[bytes, Row]]) -> None:
    """Check P3: a UID that was ever shown for two messages, at any nodes, is out of use."""
    for mailbox_id, found in rows.items():
        uidvalidity = uidvalidity_of(connection_of(node.store), mailbox_id)
        for guid, row in found.items():
            shown = known.history.shown.get((mailbox_id, uidvalidity, row.uid), set())
            others = {other.hex() for other, head in shown if other != guid and known.has(head)}
            assert not others, f"P3: UID {row.uid} is in use for {guid.hex()} and was shown for {others}"


def _moved_along(changes: Sequence[TreeChange], mailbox_id: bytes) -> bool:
    """Return True if the folder was last named by the renaming of a folder above it. `changes`: by stamp."""
    renames = [(item.dot, item.change) for item in changes if isinstance(item.change, FolderRename)]
    own = [(dot, change.name) for dot, change in renames if change.mailbox_id == mailbox_id]
    if not own:
        return False
    last, name = own[-1]
    return any(dot == last and name.startswith(f"{change.name}/") for dot, change in renames)


def _check_trees(known: KnownHistory, node: Node) -> None:
    connection = connection_of(node.store)
    changes = sorted(
        (change for change in known.history.tree if known.has(change.dot)), key=lambda one: (one.stamp, one.dot)
    )
    deleted = {item.change.mailbox_id for item in changes if isinstance(item.change, FolderDelete)}
    subscribed: dict[tuple[str, str], bool] = {}
    named: dict[tuple[str, str], set[bytes]] = defaultdict(set)  # user and name -> folders that ever had it
    last_name: dict[bytes, str] = {}
    names_of: dict[bytes, set[str]] = defaultdict(set)
    annotated: dict[str, list[TreeChange]] = defaultdict(list)  # by user
    for item in changes:
        if isinstance(item.change, FolderAnnotate):
            annotated[item.user].append(item)
        elif isinstance(item.change, FolderSubscribe):
            subscribed[item.user, item.change.name] = item.change.subscribed
        elif not isinstance(item.change, FolderDelete):
            named[item.user, item.change.name].add(item.change.mailbox_id)
            names_of[item.change.mailbox_id].add(item.change.name)
            last_name[item.change.mailbox_id] = item.change.name
    for item in changes:
        if isinstance(item.change, FolderCreate) and item.change.mailbox_id not in deleted:
            row = connection.execute(
                "SELECT name, deleted FROM folder WHERE mailbox_id = ?", (item.change.mailbox_id,)
            ).fetchone()
            assert row is not None, f"the folder {item.change.name} of {item.user} is lost"
            name, is_gone = row
            last = last_name[item.change.mailbox_id]
            assert name == last, f"a folder of {item.user} is called {name} and was last called {last}"
            # A united folder that is visible because of its mail moves along with its parent, and disappears with the
            # last of its mail.
            names = names_of[item.change.mailbox_id] if _moved_along(changes, item.change.mailbox_id) else {name}
            sharing = set[bytes]().union(*(named[item.user, one] for one in names)) - {item.change.mailbox_id}
            united = queries.folder(connection, item.user, name) or sharing
            assert not is_gone or united, f"the folder {name} of {item.user} is gone and nobody deleted it"
    for user in {item.user for item in changes}:
        expected = {name for (owner, name), value in subscribed.items() if owner == user and value}
        assert queries.subscriptions(connection, user) == expected, f"subscriptions of {user}"
        _check_annotations(connection, user, annotated[user])


def _check_annotations(connection: queries.Connection, user: str, changes: Sequence[TreeChange]) -> None:
    """Check that each annotation of a living folder is as its last change says, or as a later one of a united folder.

    `changes` are by stamp.
    """
    values: dict[tuple[str, Stamp], bytes | None] = {}
    last: dict[tuple[bytes, str], Stamp] = {}
    for item in changes:
        assert isinstance(item.change, FolderAnnotate)
        for name, value in item.change.values:
            values[name, item.stamp] = value
            last[item.change.mailbox_id, name] = item.stamp
    rows = queries.tree_rows(connection, user)
    shown = {(row.mailbox_id, row.name): row for row in rows if isinstance(row, AnnotationState)}
    living = {row.mailbox_id for row in rows if isinstance(row, FolderState) and not row.deleted}
    for (mailbox_id, name), row in shown.items():
        stamp = Stamp(row.time, row.sid)
        assert values.get((name, stamp), b"never set") == row.value, f"annotation {name} of {user}: {row.value!r}"
        is_last = last.get((mailbox_id, name)) == stamp
        assert is_last or mailbox_id != NOWHERE, f"annotation {name} of {user} is not as last set"
    for (mailbox_id, name), stamp in last.items():
        if mailbox_id in {NOWHERE, *living}:
            found = shown.get((mailbox_id, name))
            assert found is not None, f"annotation {name} of {user} is lost"
            assert Stamp(found.time, found.sid) >= stamp, f"a later value of annotation {name} of {user} is lost"


def _check_abandoned(known: KnownHistory, rows: dict[bytes, dict[bytes, Row]]) -> None:
    """Check that acknowledged mail of abandoned entries was saved again, unless a client has expunged it."""
    shown = {row.guid for found in rows.values() for row in found.values()}
    history = known.history
    expunged = {history.added[placement].guid for placement in history.expunged if placement in history.added}
    for (dot, number), added in history.added.items():
        is_owed = dot in known.abandoned and dot in history.acknowledged and not added.copied
        assert not is_owed or added.guid in shown | expunged, f"mail {number} of {dot}, which was abandoned, is lost"


def _check_ledger(world: World, known: KnownHistory, node: Node, rows: dict[bytes, dict[bytes, Row]]) -> None:
    """Check the requests and promises of clients, independently of what nodes have numbered."""
    lost: set[tuple[bytes | None, bytes]] = set()
    for placement, added in known.history.added.items():
        if not known.has(placement[0]):
            lost |= {(added.mailbox_id, added.content_hash), (None, added.content_hash)}
    gone = connection_of(node.store).execute("SELECT mailbox_id FROM folder WHERE deleted = 1")
    existing = rows.keys() - {mailbox_id for (mailbox_id,) in gone} - known.history.emptied
    by_mailbox = {mailbox_id: found.values() for mailbox_id, found in rows.items()}
    living = connection_of(node.store).execute("SELECT mailbox_id FROM folder WHERE deleted = 0")
    homes = {NOWHERE, *(mailbox_id for (mailbox_id,) in living)}
    if not known.history.has_lost_disks:
        world.ledger.check_annotations(
            homes, lambda user, home: queries.annotations_of(connection_of(node.store), user, home)
        )
    world.ledger.check(
        by_mailbox, existing, lambda mailbox_id, content_hash: (mailbox_id, content_hash) in lost, known.extra_copies()
    )
    if not known.history.has_lost_disks:
        world.ledger.check_gone(by_mailbox)


def _check_missing_bodies(world: World, *, may_lack: bool) -> None:
    """Check that every body that a node has yet to fetch is whole on another node's disk."""
    for machine in world.up():
        query = "SELECT DISTINCT hash FROM lacking"
        for (content_hash,) in connection_of(machine.node.store).execute(query).fetchall():
            is_somewhere = any(holds_bodies(other, [content_hash]) for other in world.up())
            assert is_somewhere or may_lack, f"{machine.sid} lacks {content_hash.hex()}, and so do all others"


async def _check_visibility(node: Node, rows: dict[bytes, dict[bytes, Row]], *, may_lack: bool) -> None:
    """Check that every message is in a folder that its user can see, and its body is readable unless it `may_lack`."""
    in_sight: set[bytes] = set()
    for user in queries.users(connection_of(node.store)):
        folders: Iterable[Folder] = await node.mail.folders(user)
        for folder in folders:
            in_sight.add(folder.mailbox_id)
            view = await node.mail.open_mailbox(folder)
            assert len(view.messages) == len(rows.get(folder.mailbox_id, {})), "a view and its rows differ"
            for message in list(view.messages.values()):
                try:
                    await read_all(await node.mail.read_body(message))
                except ContentUnavailableError:  # a checkpoint may list mail whose body was on a lost disk alone
                    assert may_lack, "a body is gone"
    hidden = [mailbox_id.hex() for mailbox_id, found in rows.items() if found and mailbox_id not in in_sight]
    assert not hidden, f"mail in mailboxes that cannot be seen: {hidden}"


async def _check_attachments(node: Node) -> None:
    """Check that, after a sweep of what crashes left, each attachment is held by exactly the recorded holders."""
    recorded, attachments = RecordedHolders(connection_of(node.store)), node.store.attachments
    with trio.move_on_after(LET_GO_S):
        while attachments.in_flight():  # noqa: ASYNC110 - no event of the node marks its end
            await trio.sleep(1)
    assert not attachments.in_flight(), f"nobody has recorded or let go of {attachments.in_flight()}"
    for _ in range(2):  # an attachment whose last holder goes is seen by the second sweep
        for _ in sweep(attachments, recorded, repair=True):
            pass
    left = [finding for part in sweep(attachments, recorded, repair=False) for finding in part.found]
    assert not left, f"after a sweep there is still: {left}"
    files = attachments.files
    assert isinstance(files, MemoryFiles)
    query = "SELECT holder FROM attachment"
    recorded_holders = sorted(holder for (holder,) in connection_of(node.store).execute(query))
    held = sorted(name.rpartition("/")[2] for name in files.tree() if "/holders/" in name)
    assert held == recorded_holders, f"held by {held}, recorded {recorded_holders}, {attachments.in_flight()} in flight"


async def _check_caches(known: KnownHistory, world: World, caches: Iterable[Cache]) -> None:
    """Check that a cache from any node becomes right at any node, by the changes since then."""
    nodes = [machine.node for machine in world.up()]
    for number, cache in enumerate(caches):
        if not all(known.has(Dot(*item)) for item in cache.context.items()):
            continue  # it includes entries that were lost with the disks that held them
        node = nodes[number % len(nodes)]
        connection = connection_of(node.store)
        shown = queries.uidvalidities(connection, cache.mailbox_id)
        fits = shown is not None and shown[0] == cache.uidvalidity
        mailboxes = {cache.mailbox_id} if fits else set()
        folder = queries.folder(connection, cache.user, cache.name)
        is_believed = folder is not None and folder.uidvalidity == cache.uidvalidity  # as its client can tell
        if folder is not None and is_believed and not known.history.has_lost_disks:
            mailboxes.add(folder.mailbox_id)
        for mailbox_id in sorted(mailboxes):
            cache.resync(await node.store.view(MailboxKey(cache.user, mailbox_id, cache.uidvalidity)), {})


def check_wire(world: World) -> None:
    """Check that each request has at most one answer, and that no two requests have the same tag."""
    for one, other in world.pairs:
        for pair in ((one, other), (other, one)):
            for sent in world.network.road(*pair).sent:
                items = list(decoded(bytes(sent)))
                for kind in (Request, Response):
                    tags = [item.tag for item in items if isinstance(item, kind) and item.tag is not None]
                    assert len(set(tags)) == len(tags), f"{pair}: a tag was used twice"
