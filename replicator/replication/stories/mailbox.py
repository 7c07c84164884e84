"""All that this node knows of one mailbox, and whether the other nodes show the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from master_election.scope_record import Event
from protocol.commands import Done, Mismatch, Refused, Reply
from protocol.values import context_of, covers
from replicator.mail.mailstore import Folder
from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.mastership.tenures import Tenure
from replicator.replication.stories.history import find_folder
from replicator.replication.writes import head_exchange
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.log.stories import story_rows
from replicator.store.log.stories.story_rows import MailboxFacts
from replicator.store.store import Reader
from replicator.stories import Agreement, MailboxStory, MasterHow, ShownElsewhere, WaitingEntry
from resync.clock import COUNTER_BITS
from resync.story.lives import named

_HOW: Mapping[Event, MasterHow] = {
    Event.ROOT_NAMES_US: "named",
    Event.ROOT_NAMES_OTHER: "told",
    Event.TAKEN: "taken",
    Event.GIVEN: "given",
}


async def story_of(reader: Reader, coordinator: Coordinator, user: str, name: str, clock_ms: int) -> MailboxStory:
    """Return what is known. Raises FolderNotFoundError, DatabaseFailedError, DatabaseDamagedError."""
    known = await find_folder(reader, coordinator.sid, user, name)
    folder = Folder(user, known.name, known.mailbox_id, known.uidvalidity, known.own)
    facts = await reader.read(partial(story_rows.mailbox_facts, key=MailboxKey.of(folder)))
    asked = _Asked(coordinator, folder, facts.chain)
    await asked.ask_all()
    tenure = asked.tenure
    chain, waiting = facts.chain, facts.waiting
    return MailboxStory(
        node=coordinator.sid,
        clock_ms=clock_ms,
        user=user,
        mailbox=known.name,
        mailbox_id=known.mailbox_id.hex(),
        is_deleted=known.is_deleted,
        uidvalidity=known.uidvalidity,
        risen=chain.risen,
        uidnext=chain.uidnext,
        highestmodseq=chain.highestmodseq,
        messages=chain.messages,
        unseen=chain.unseen,
        size_bytes=chain.size_bytes,
        digest=chain.digest().hex(),
        head=None if chain.head is None else named(chain.head),
        head_ms=facts.head_ms,
        is_head_logged=facts.is_head_logged,
        master=asked.master,
        master_since_ms=None if tenure is None else clock_ms - int((trio.current_time() - tenure.since) * 1000),
        master_how=None if tenure is None else _HOW.get(tenure.event),
        term=coordinator.elections.machine.term,
        waiting=waiting.entries,
        branches=waiting.branches,
        waiting_since_ms=waiting.since_ms,
        waiting_entries=_waiting(facts),
        why_apart=coordinator.fork_merger.why_apart(chain.id),
        abandoned=waiting.abandoned,
        is_unproven=facts.is_unproven,
        is_postponed=facts.is_postponed,
        checkpoint=None if facts.checkpoint is None else named(facts.checkpoint.dot),
        checkpoint_ms=None if facts.checkpoint is None else facts.checkpoint.time >> COUNTER_BITS,
        kept_messages=facts.kept.messages,
        kept_bytes=facts.kept.size_bytes,
        kept_since_ms=facts.kept.since_ms,
        keep_expunged_s=coordinator.config.content.keep_expunged_s,
        nodes=tuple(asked.answers[sid] for sid in sorted(asked.answers)),
    )


class _Asked:
    """The words of others on a mailbox: its master, and how each node shows it. Each has `STORY_ASK_S` to answer."""

    def __init__(self, coordinator: Coordinator, folder: Folder, mine: Chain) -> None:
        self.master: str | None = None
        self.tenure: Tenure | None = None
        self.answers: dict[str, ShownElsewhere] = {}
        self._coordinator = coordinator
        self._folder = folder
        self._mine = mine

    async def ask_all(self) -> None:
        """Ask all configured nodes, and all that can be reached, at once."""
        coordinator = self._coordinator
        nodes = {*coordinator.connections.peers, *coordinator.mastership.table.component} - {coordinator.sid}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_for_master)
            for sid in nodes:
                nursery.start_soon(self._ask, sid)

    async def _ask_for_master(self) -> None:
        with trio.move_on_after(timing.STORY_ASK_S):
            self.master = await self._coordinator.handover.master_of(self._folder)
        mastership, key = self._coordinator.mastership, MailboxKey.of(self._folder)
        if self.master is not None and mastership.known_master(key) == self.master:
            self.tenure = mastership.tenure(key)

    async def _ask(self, sid: str) -> None:
        self.answers[sid] = ShownElsewhere(sid, "unreachable", why=self._why_unreachable(sid))
        link, key = self._coordinator.mastership.toward(sid), MailboxKey.of(self._folder)
        with trio.move_on_after(timing.STORY_ASK_S) as scope:
            reply = await head_exchange.ask(link, sid, key, self._mine)
            if reply is not None:
                self.answers[sid] = answer_of(sid, self._mine, reply)
        if scope.cancelled_caught:
            late = f"it has not answered within {timing.STORY_ASK_S:.0f} s"
            self.answers[sid] = ShownElsewhere(sid, "unreachable", why=late)

    def _why_unreachable(self, sid: str) -> str:
        state = self._coordinator.connections.peers.get(sid)
        return (state.error if state is not None else None) or "no route leads there"


def answer_of(sid: str, mine: Chain, reply: Reply) -> ShownElsewhere:
    """Return what a node's reply to MBOX says, if this node shows `mine`."""
    match reply:
        case Done():
            return ShownElsewhere(sid, "same", None if mine.head is None else named(mine.head))
        case Mismatch(_, head, context):
            if head is None:
                return ShownElsewhere(sid, "nothing")
            return ShownElsewhere(sid, _agreement(mine.context, context_of(context)), named(head))
        case Refused():
            return ShownElsewhere(sid, "unreachable", why=reply.text)
    return ShownElsewhere(sid, "unreachable", why=f"it answered {type(reply).__name__}")


def _agreement(ours: dict[str, int], theirs: dict[str, int]) -> Agreement:
    match covers(ours, theirs), covers(theirs, ours):
        case True, True:
            return "differs"
        case True, False:
            return "behind"
        case False, True:
            return "ahead"
    return "forked"


def _waiting(facts: MailboxFacts) -> tuple[WaitingEntry, ...]:
    return tuple(
        WaitingEntry(named(one.dot), one.dot.sid, one.time_ms, None if one.lacks is None else named(one.lacks))
        for one in facts.waiting.first
    )
