"""Mail programs that change mail at every node, and check each node against what it told them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import trio

from protocol.values import UidSet, covers
from replicator.errors import FolderExistsError, FolderNotFoundError, MailError
from replicator.mail.mailstore import INBOX, Folder, NewMessage
from replicator.mail.view import MailboxView, Message
from replicator.replication import timing
from replicator.replication.tasks.runner import TaskError
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.tasks import UndeleteOptions
from resync.entry import NOWHERE
from tests.replication.cluster import Node
from tests.simulation.checks.retention import LedgerUndelete
from tests.simulation.machine import Machine, NodeGoneError
from tests.simulation.records.cache import Cache
from tests.simulation.records.watch import placements_of
from tests.simulation.world import World
from tests.store.harness import connection_of

FOLDERS = (INBOX, "Work", "Work/Done", "Trash")
FOLDER_WEIGHTS = (6, 2, 1, 1)
FLAGS = ("\\Seen", "\\Flagged", "$Later")
FOREIGN_UIDVALIDITIES = 1 << 31
"""UIDVALIDITYs of other servers are drawn below it: so many that hardly ever two sides draw one."""
SESSION_S = 6 * timing.REQUEST_TIMEOUT_S  # enough for some commands, each of a few changes

Action = Callable[[Node, MailboxView], Awaitable[str]]


class Client:
    """A user's mail program. It moves between nodes and keeps a cache of each mailbox at each node."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._ledger = world.ledger
        self._dice = random.Random(f"client {world.plan.seed} {number}")
        self._name = f"client {number}"
        self.user = self._dice.choice(world.plan.users)
        self._machine = self._dice.choice(list(world.machines.values()))
        self._caches: dict[tuple[str, str], Cache] = {}  # SID, folder name
        self._named: dict[bytes, str] = {}  # mailbox id -> the name under which its folder was opened
        self._heard: dict[bytes, tuple[str, dict[str, int]]] = {}  # mailbox id -> SID of the last OK, context there
        self._mails = 0
        self._values = 0
        self._pause_s = world.plan.pause_s * self._dice.choice((0.2, 1.0, 1.0, 1.0))
        habits = {
            self._save: 7.0, self._deliver: 2.0, self._flag: 4.0, self._flag_unchanged: 2.0, self._expunge: 3.0,
            self._copy: 3.0, self._move: 1.0, self._change_folders: 1.5, self._annotate: 1.5, self._raise_numbers: 0.5,
            self._renumber: 0.5,
        }  # fmt: skip
        if world.plan.undeletes:
            habits[self._undelete] = 1.0
        if world.plan.moves_masters:
            habits[self._move_master] = 2.0
        self._actions: list[Action] = list(habits)
        self._weights = [weight * self._dice.choice((0.1, 1.0, 1.0, 8.0)) for weight in habits.values()]
        self.old_caches: list[Cache] = []  # of nodes that have begun anew

    @property
    def caches(self) -> list[Cache]:
        return [*self._caches.values(), *self.old_caches]

    def forget(self, sid: str) -> None:
        """Set the node's caches aside: it has another disk, and may have forgotten what it showed."""
        for key in [key for key in self._caches if key[0] == sid]:
            self.old_caches.append(self._caches.pop(key))
        self._heard = {one: heard for one, heard in self._heard.items() if heard[0] != sid}

    async def run(self) -> None:
        """Run sessions until cancelled."""
        while True:
            await trio.sleep(self._dice.uniform(0.01, self._pause_s))
            if self._dice.random() < 0.3 or not self._machine.is_up:
                self._machine = self._dice.choice(list(self._world.machines.values()))
            patience_s = self._dice.choice((0.5, 2.0, 10.0, SESSION_S))
            try:
                with trio.move_on_after(patience_s):
                    await self._machine.call(partial(self._session, self._machine))
            except NodeGoneError as error:
                self._say(str(error))
            except MailError as error:
                self._say(f"at {self._machine.sid}: {type(error).__name__}: {error}")

    async def check_save(self, machine: Machine) -> None:
        """Check that a node of a healthy cluster takes a mail at once."""
        began = trio.current_time()
        await machine.call(self._save_to_inbox)
        assert trio.current_time() - began < timing.REQUEST_TIMEOUT_S / 2

    async def _save_to_inbox(self, node: Node) -> None:
        view = await self._open(node, INBOX)
        self._say(f"at {node.sid}: {await self._save(node, view)}")

    async def check_undelete(self, machine: Machine, other: Machine) -> None:
        """Check that mail that is expunged at one node of a healthy cluster can be undeleted at another one."""
        chosen = await machine.call(self._expunge_some)
        await self._world.settle()
        told = await other.call(self._undelete_all)
        whys = {guid.hex(): told.get(guid, "it is not kept") for guid in chosen}
        left = {guid: why for guid, why in whys.items() if why and not why.startswith("the user has it in")}
        assert not left, f"{other.sid} does not undelete {left}"

    async def _expunge_some(self, node: Node) -> list[bytes]:
        """Expunge some messages and return their GUIDs."""
        view = await self._open(node, INBOX)
        chosen = self._pick_messages(view)
        self._ledger.asks_to_remove(view.mailbox_id, chosen)
        await node.mail.expunge(view, _uids(chosen))
        self._ledger.removed(view.mailbox_id, chosen)
        return [message.guid for message in chosen]

    async def _undelete_all(self, node: Node) -> dict[bytes, str | None]:
        """Undelete messages. Return GUID -> the reason why it was left, or None."""
        job = LedgerUndelete(UndeleteOptions(self.user, INBOX), node, self._ledger)
        await job.run()
        self._say(f"at {node.sid}: {job.status.summary()}")
        return {bytes.fromhex(message.guid): message.why_not for message in job.status.messages}

    # ---- sessions

    async def _session(self, machine: Machine, node: Node) -> None:
        began, frozen_s = trio.current_time(), machine.frozen_s
        try:
            name = self._dice.choices(FOLDERS, FOLDER_WEIGHTS)[0]
            await self._check_own_writes(node, name)
            view = await self._look(node, name)
            for _ in range(self._dice.randint(1, 3)):
                action = self._dice.choices(self._actions, self._weights)[0]
                if not view.messages:
                    action = self._save
                self._say(f"at {node.sid}: {await action(node, view)}")
                if self._hears_answer(node):
                    self._heard[view.mailbox_id] = node.sid, _context(node, view)
                await trio.sleep(self._dice.uniform(0, self._pause_s / 4))
            await self._look(node, name)
        finally:
            if node is (machine.life and machine.life.node):
                waited_s = trio.current_time() - began - (machine.frozen_s - frozen_s)
                assert waited_s <= SESSION_S + 1, f"a session at {node.sid} took {waited_s:.1f} s"

    async def _open(self, node: Node, name: str) -> MailboxView:
        """Open the folder, creating it if needed. A name and a UIDVALIDITY name one mailbox for good."""
        try:
            folder = await node.mail.folder(self.user, name)
        except FolderNotFoundError:
            try:
                folder = await node.mail.create_folder(self.user, name)
                if self._dice.random() < 0.2:
                    folder = await node.mail.keep_uidvalidity(folder, self._dice.randrange(1, FOREIGN_UIDVALIDITIES))
            except FolderExistsError:  # its UIDVALIDITY may be taken, too
                folder = await node.mail.folder(self.user, name)
        key = (node.sid, self.user, folder.name, folder.uidvalidity)
        known = self._world.names.setdefault(key, folder.mailbox_id)
        assert known == folder.mailbox_id, f"{name} {folder.uidvalidity} at {node.sid} is another mailbox than before"
        self._named[folder.mailbox_id] = name
        return await node.mail.open_mailbox(folder)

    async def _look(self, node: Node, name: str) -> MailboxView:
        """Open a folder and bring the cache up to date."""
        view = await self._open(node, name)
        _check_view(node, view)
        key, context = (node.sid, name), _context(node, view)
        known = self._caches.get(key)
        if known is not None and known.uidvalidity == view.uidvalidity:
            self._caches[key] = known.resync(view, context)
        else:
            self._caches[key] = Cache.fetch(name, view, context)
        return view

    # ---- actions

    async def _move_master(self, node: Node, view: MailboxView) -> str:
        """Make any node the master, as an operator does at this node."""
        sid = self._dice.choice(list(self._world.machines))
        await node.coordinator.handover.move_to(self._folder(view), sid)
        return f"moved the master of {self._named[view.mailbox_id]} to {sid}"

    async def _save(self, node: Node, view: MailboxView) -> str:
        mails = [self._new_mail() for _ in range(self._dice.choice((1, 1, 1, 1, 2, 4)))]
        # A liar may say in HELLO that it cannot keep UIDs, which is believed while the link lasts.
        if self._dice.random() < 0.15 and self._world.plan.deception is None:
            mails = [replace(mail, uid=max(1, view.uidnext + self._dice.randint(-2, 6))) for mail in mails]
        hashes = [self._ledger.asks_to_save(mail.body) for mail in mails if isinstance(mail.body, bytes)]
        merges = self._world.history.merges_of(view.mailbox_id)
        saved = await node.mail.save_all(self._folder(view), mails)
        is_same = {one.uidvalidity for one in saved} == {view.uidvalidity}  # else they follow their name elsewhere
        if self._hears_answer(node):
            self._ledger.promised(view.mailbox_id if is_same else None, hashes)
        for one, content_hash in zip(saved, hashes, strict=True):
            shown = view.messages.get(one.uid) if is_same and one.shown else None  # else no client is told of the UID
            assert shown is None or shown.content_hash == content_hash, "the UID of a mail that was saved is another's"
        uids = [one.uid for one in saved]
        # A save that is repeated brings back what others have expunged meanwhile, above what they have left. And a
        # merge may give some of the mails other UIDs before the client hears of any.
        is_untouched = not any(map(self._ledger.is_unwanted, hashes))
        is_untouched = is_untouched and self._world.history.merges_of(view.mailbox_id) == merges
        if is_same and is_untouched and all(one.shown for one in saved):
            assert uids == sorted(uids), "mails change their order"
        return f"saves mail {self._mails} of {self._name}: UIDs {uids} of {view.mailbox_id.hex()[:4]}"

    async def _raise_numbers(self, node: Node, view: MailboxView) -> str:
        """Raise UIDNEXT and HIGHESTMODSEQ to higher ones, as those of another server may be."""
        uidnext = max(1, view.uidnext + self._dice.randint(-1, 5))
        modseq = max(0, view.highestmodseq + self._dice.randint(-1, 50))
        await node.mail.raise_numbers(self._folder(view), uidnext, modseq)
        is_shown = self._hears_answer(node) and node.store.views._views.get(view.mailbox_id) is view
        if is_shown and self._world.plan.deception is None:  # else the master may have been asked for something else
            assert view.uidnext >= uidnext, "UIDNEXT was not raised"
            assert view.highestmodseq >= modseq, "HIGHESTMODSEQ was not raised"
        return f"raises numbers of {view.mailbox_id.hex()[:4]} to {uidnext} and {modseq}"

    async def _renumber(self, node: Node, view: MailboxView) -> str:
        """Give some messages other UIDs, as after a Dovecot and the cluster have both given theirs."""
        chosen = self._pick_messages(view)
        wanted = {one.uid: view.uidnext + self._dice.randrange(5) for one in chosen}
        await node.mail.renumber(view, wanted)
        return f"gives {_uids(chosen)} in {view.mailbox_id.hex()[:4]} the UIDs {sorted(wanted.values())}"

    async def _deliver(self, node: Node, view: MailboxView) -> str:  # noqa: ARG002 - as the other actions
        """Deliver a mail as LMTP does, to the client's user or to one who has had no mail yet."""
        mail = self._new_mail()
        assert isinstance(mail.body, bytes)
        user = self._dice.choice((self.user, f"{self.user}/{self._mails}/{self._name}"))
        content_hash = self._ledger.asks_to_save(mail.body)
        await node.mail.deliver(user, mail)
        if self._hears_answer(node):
            self._ledger.promised(None, [content_hash])
        return f"delivers mail {self._mails} of {self._name} to {user}"

    def _new_mail(self) -> NewMessage:
        self._mails += 1
        size = self._dice.choice((0, 0, 0, 0, 100, 3000, 30_000, 100_000))
        flags = frozenset(self._dice.sample(FLAGS, self._dice.choice((0, 0, 1))))
        return NewMessage(self._body(f"mail {self._mails} of {self._name}".encode(), size), flags)

    def _body(self, name: bytes, size: int) -> bytes:
        """Return a message's body; half of them have a part that other messages have as well."""
        if self._dice.random() < 0.5:
            return name + b"." * size
        logo = b"%d" % self._dice.randrange(3) * (100 + size)
        return b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n%b\r\n--b\r\n\r\n%b\r\n--b--" % (
            name,
            logo,
        )

    async def _flag(self, node: Node, view: MailboxView) -> str:
        chosen = self._pick_messages(view)
        if not chosen:
            return "finds nothing to flag"
        flags, value = frozenset(self._dice.sample(FLAGS, self._dice.randint(1, 2))), self._dice.random() < 0.6
        added, removed = (flags, frozenset[str]()) if value else (frozenset[str](), flags)
        before, began = _context(node, view), trio.current_time()
        await node.mail.store_flags(view, _uids(chosen), added=added, removed=removed)
        if _shows_all(node, view, began):
            self._check_flags(view, chosen, flags, before, value=value)
        return f"{'sets' if value else 'clears'} {sorted(flags)} of {_uids(chosen)} in {view.mailbox_id.hex()[:4]}"

    async def _flag_unchanged(self, node: Node, view: MailboxView) -> str:
        """Store flags with UNCHANGEDSINCE: the change of a message that the client has seen changed must be refused."""
        chosen = self._pick_messages(view)
        if not chosen:
            return "finds nothing to flag"
        since = self._dice.choice([message.modseq for message in chosen]) - self._dice.choice((0, 0, 1))
        must_refuse = {message.uid for message in chosen if message.modseq > since}
        flag = frozenset({self._dice.choice(FLAGS)})
        result = await node.mail.store_flags(view, _uids(chosen), added=flag, unchanged_since=since)
        refused = set(result.refused)
        still_there = {uid for uid in must_refuse if uid in view.messages}
        assert still_there <= refused, f"changed since {since}, and not refused: {sorted(still_there - refused)}"
        return f"sets {sorted(flag)} of {_uids(chosen)} unchanged since {since}: not {sorted(refused)}"

    async def _expunge(self, node: Node, view: MailboxView) -> str:
        chosen = self._pick_messages(view)
        if not chosen:
            return "finds nothing to expunge"
        began = trio.current_time()
        self._ledger.asks_to_remove(view.mailbox_id, chosen)
        await node.mail.expunge(view, _uids(chosen))
        if self._hears_answer(node):
            self._ledger.removed(view.mailbox_id, chosen)
        if _shows_all(node, view, began):
            self._check_gone(node, view, chosen)
        return f"expunges {_uids(chosen)} from {view.mailbox_id.hex()[:4]}"

    async def _copy(self, node: Node, view: MailboxView) -> str:
        return await self._transfer(node, view, moves=False)

    async def _move(self, node: Node, view: MailboxView) -> str:
        return await self._transfer(node, view, moves=True)

    async def _transfer(self, node: Node, view: MailboxView, *, moves: bool) -> str:
        to = await self._open(node, self._dice.choices(FOLDERS, FOLDER_WEIGHTS)[0])
        chosen = self._pick_messages(view)  # as the node shows it now
        if not chosen or (moves and to.mailbox_id == view.mailbox_id):
            return "finds nothing to copy"
        folder = self._folder(to)
        transfer = node.mail.move if moves else node.mail.copy
        began = trio.current_time()
        self._ledger.asks_to_copy(chosen)
        if moves:
            self._ledger.asks_to_remove(view.mailbox_id, chosen)
        copied = await transfer(view, _uids(chosen), folder)
        self._note_transfer(node, view, chosen, to, moves=moves)
        hashes = {message.uid: message.content_hash for message in chosen}
        for source, destination in copied.uids if copied.shown else ():  # otherwise no client is told of them
            shown = to.messages.get(destination)
            assert shown is None or shown.content_hash == hashes[source], f"UID {source} was copied as another message"
        if moves and _shows_all(node, view, began):
            self._check_gone(node, view, chosen)
        return f"{'moves' if moves else 'copies'} {_uids(chosen)} from {view.mailbox_id.hex()[:4]} to {copied.uids}"

    async def _undelete(self, node: Node, view: MailboxView) -> str:
        since_ms = self._dice.choice((None, self._world[node.sid].clock.now_ms() - 3000))
        name = self._named[view.mailbox_id]
        job = LedgerUndelete(
            UndeleteOptions(self.user, name, since_ms), node, self._ledger, lambda: self._hears_answer(node)
        )
        try:
            await job.run()
        except TaskError as error:
            return f"cannot undelete: {error}"
        return f"undeletes in {name}: {job.status.summary()}"

    async def _change_folders(self, node: Node, view: MailboxView) -> str:  # noqa: ARG002 - as the other actions
        name, choice = self._dice.choice(FOLDERS[1:]), self._dice.random()
        mail, user = node.mail, self.user
        try:
            if choice < 0.3:
                await mail.subscribe(user, name, subscribed=self._dice.random() < 0.6)
                return f"subscribes to {name} or not"
            if choice < 0.5:
                await mail.create_folder(user, f"{name}/{self._dice.choice('abc')}")
                return f"creates a folder in {name}"
            if choice < 0.75:
                await mail.rename_folder(user, name, to := self._dice.choice(("Work", "Done", "Trash/Old")))
                return f"renames {name} to {to}"
            with self._ledger.deletes_folder():
                await mail.delete_folder(user, name)
        except (FolderExistsError, FolderNotFoundError) as error:
            return f"cannot change {name}: {error}"
        return f"deletes {name}"

    async def _annotate(self, node: Node, view: MailboxView) -> str:
        folder = self._folder(view) if self._dice.random() < 0.5 else None
        home = NOWHERE if folder is None else folder.mailbox_id
        self._values += 1
        value = f"{self._name}, value {self._values}".encode()
        values = {
            "/private/vendor/soak/kept": value,
            "/private/vendor/soak/removed": value if self._dice.random() < 0.5 else None,
        }
        self._ledger.asks_to_annotate(self.user, values)
        await node.mail.annotate(self.user, folder, values)
        if self._hears_answer(node):
            self._ledger.annotated(self.user, home, values)
        return f"annotates {folder.name if folder else 'the account'}: {values}"

    def _note_transfer(
        self, node: Node, view: MailboxView, chosen: list[Message], to: MailboxView, *, moves: bool
    ) -> None:
        if self._hears_answer(node):
            moved_from = view.mailbox_id if moves else None
            self._ledger.promised(to.mailbox_id, [message.content_hash for message in chosen], moved_from)
            if moves:
                self._ledger.removed(view.mailbox_id, chosen)

    # ---- checks of the node's answers

    async def _check_own_writes(self, node: Node, name: str) -> None:
        """Check that the node shows what the client heard OK for elsewhere (design section 8).

        It need not if it says that it does not, if one of the two nodes counts the other as out of reach, if the node
        that said OK has lost its disk meanwhile, or if nodes are told falsehoods: then nobody knows which head another
        node shows.
        """
        in_reach, heard_before = self._in_reach(node), dict(self._heard)  # a node that stands still answers much later
        if not await node.mail.catch_up(self.user, name) or self._world.plan.deception is not None:
            return
        try:
            view = await node.mail.open_mailbox(await node.mail.folder(self.user, name))
        except FolderNotFoundError:
            return
        before = heard_before.get(view.mailbox_id)
        if before is None or before is not self._heard.get(view.mailbox_id):
            return
        sid, heard = before
        if sid != node.sid and sid in in_reach & self._in_reach(node):
            shown = _context(node, view)
            assert covers(shown, heard), f"{node.sid} shows {shown}, but {self._name} heard OK for {heard} at {sid}"
            self._say(f"at {node.sid}: sees what it heard OK for at {sid}")

    def _in_reach(self, node: Node) -> set[str]:
        machines = self._world.machines
        others = (sid for sid in node.component if sid != node.sid and machines[sid].is_up)
        return {sid for sid in others if node.sid in machines[sid].node.component}

    def _check_flags(
        self, view: MailboxView, chosen: list[Message], flags: frozenset[str], before: dict[str, int], *, value: bool
    ) -> None:
        """Check that a client sees its own changes, unless another client changed the same flag unknown to the node."""
        here = {one: message for message in view.messages.values() for one in placements_of(message)}
        for message in chosen:
            shown = here.get((message.dot, message.change))
            if shown is None or (flags <= shown.flags if value else not flags & shown.flags):
                continue
            others = self._world.history.flag_changes(view.mailbox_id, message.guid, flags)
            unheard = [one for one in others if one.value != value and before.get(one.dot.origin, 0) < one.dot.seq]
            assert unheard, f"UID {shown.uid} has {sorted(shown.flags)} after {sorted(flags)} became {value}"

    @staticmethod
    def _check_gone(node: Node, view: MailboxView, chosen: list[Message]) -> None:
        gone = {one for message in chosen for one in placements_of(message)}
        left = [message for message in view.messages.values() if gone.issuperset(placements_of(message))]
        assert not left, f"{_uids(left)} was expunged with OK at {node.sid} and is there"

    # ---- helpers

    def _folder(self, view: MailboxView) -> Folder:
        return Folder(self.user, self._named[view.mailbox_id], view.mailbox_id, view.uidvalidity, view.own)

    def _pick_messages(self, view: MailboxView) -> list[Message]:
        messages = list(view.messages.values())
        return self._dice.sample(messages, min(len(messages), self._dice.randint(1, 3)))

    def _hears_answer(self, node: Node) -> bool:
        """Return True if the client hears the node's answer: not if the node ends just then."""
        life = self._world[node.sid].life
        return life is not None and life.node is node

    def _say(self, what: str) -> None:
        self._world.story.say(f"{self._name} of {self.user} {what}")


def _uids(messages: list[Message]) -> UidSet:
    return UidSet.of(message.uid for message in messages)


def _context(node: Node, view: MailboxView) -> dict[str, int]:
    chain = chains.load(connection_of(node.store), view.mailbox_id)
    return dict(chain.context) if chain else {}


def _check_view(node: Node, view: MailboxView) -> None:
    """Check that the view in memory equals the rows on disk."""
    if node.store.views._views.get(view.mailbox_id) is not view:
        return  # the folder has become another mailbox since it was opened
    chain, messages, _ = queries.messages(connection_of(node.store), view.mailbox_id)
    assert list(view.messages.values()) == messages, f"a view of {node.sid} is not what is on its disk"
    assert (view.uidnext, view.highestmodseq) == ((chain.uidnext, chain.highestmodseq) if chain else (1, 0))


def _shows_all(node: Node, view: MailboxView, began: float) -> bool:
    """Return True if a change begun at `began` must be visible by now.

    It need not be if the folder is another mailbox now, or if the node was so far behind that it answered without
    waiting.
    """
    return (
        node.store.views._views.get(view.mailbox_id) is view
        and trio.current_time() - began < timing.ROUTER_SHOW_TIMEOUT_S
    )
