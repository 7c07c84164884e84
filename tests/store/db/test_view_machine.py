"""A view updated by commits, a new view, a client that follows a subscription, and a simple model agree."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.values import UidSet
from replicator.mail.view import SEEN, MailboxView, Message
from replicator.store.db import queries
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing import sequencer
from replicator.store.log.sequencing.sequencer import CopySource
from tests.store import consistency
from tests.store.harness import INBOX, assert_same_view, guid, saving
from tests.store.memory_node import MemoryNode

FLAG = st.sampled_from([SEEN, "\\Flagged", "$Later"])
UIDS = st.sets(st.integers(1, 12), min_size=1, max_size=4)


def load(node: MemoryNode) -> MailboxView:
    chain, messages, _ = queries.messages(node.connection, INBOX.mailbox_id)
    return MailboxView.build(
        mailbox_id=INBOX.mailbox_id,
        user=INBOX.user,
        uidvalidity=INBOX.uidvalidity,
        uidnext=chain.uidnext if chain else 1,
        highestmodseq=chain.highestmodseq if chain else 0,
        rows=messages,
    )


class ViewMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node = MemoryNode("dc1.a")
        self.view = load(self.node)
        self.saved = 0
        self.model: dict[int, set[str]] = {}
        self.changed_at: dict[int, int] = {}  # UID -> modseq
        self.uidnext = 1
        self.subscription = self.view.subscribe().__enter__()
        self.client: dict[int, Message] = {}

    def write(self, *works: Callable[[Transaction], object]) -> list[Exception | None]:
        self.node.commits.clear()
        errors = self.node.write_together(works)
        for commit in self.node.commits:
            for change in commit.changes:
                self.view.apply(change)
        return errors

    def note_change(self, uids: set[int]) -> None:
        self.changed_at.update(dict.fromkeys(uids, self.view.highestmodseq))

    @rule(flags=st.sets(FLAG), together=st.integers(1, 3))
    def save(self, flags: set[str], together: int) -> None:
        modseq = self.view.highestmodseq
        numbers = range(self.saved, self.saved + together)
        self.write(*(saving(b"text %d" % number, guid(number), flags=sorted(flags)) for number in numbers))
        self.saved += together
        for _ in numbers:
            modseq += 1
            self.model[self.uidnext], self.changed_at[self.uidnext] = set(flags), modseq
            self.uidnext += 1

    @rule(uids=UIDS)
    def copy(self, uids: set[int]) -> None:
        uids &= self.model.keys()
        wanted = [CopySource(uid, self.view.messages[uid].guid, self.node.guid()) for uid in sorted(uids)]
        self.write(lambda tx: sequencer.copy(tx, INBOX.mailbox_id, wanted, INBOX))
        for uid in sorted(uids):
            self.model[self.uidnext] = set(self.model[uid])
            self.note_change({self.uidnext})
            self.uidnext += 1

    @rule(
        uids=UIDS,
        added=st.sets(FLAG, max_size=2),
        removed=st.sets(FLAG, max_size=2),
        since=st.none() | st.integers(0, 9),
    )
    def store(self, uids: set[int], added: set[str], removed: set[str], since: int | None) -> None:
        removed -= added
        refused = {uid for uid in uids & self.model.keys() if since is not None and self.changed_at[uid] > since}
        results: list[sequencer.Flagged] = []
        self.write(
            lambda tx: results.append(
                sequencer.store(
                    tx, INBOX, UidSet.of(uids), added=sorted(added), removed=sorted(removed), unchanged_since=since
                )
            )
        )
        assert set(results[0].refused) == refused
        for uid in (uids & self.model.keys()) - refused:
            after = (self.model[uid] | added) - removed
            if after != self.model[uid]:
                self.model[uid] = after
                self.note_change({uid})

    @rule(uids=UIDS)
    def expunge(self, uids: set[int]) -> None:
        self.write(lambda tx: sequencer.expunge(tx, INBOX, UidSet.of(uids)))
        for uid in uids & self.model.keys():
            del self.model[uid]

    @rule(uids=UIDS)
    def fail(self, uids: set[int]) -> None:
        """Write a batch in which one job fails after its change."""

        def spoil(tx: Transaction) -> None:
            sequencer.expunge(tx, INBOX, UidSet.of(uids))
            raise ZeroDivisionError

        assert [type(error) for error in self.write(spoil, lambda _: None)] == [ZeroDivisionError, type(None)]

    @rule()
    def take(self) -> None:
        changed, expunged = self.subscription.take()
        assert not changed & expunged
        assert changed <= self.view.messages.keys()
        for uid in expunged:
            self.client.pop(uid, None)
        self.client.update((uid, self.view.messages[uid]) for uid in changed)
        assert self.client == dict(self.view.messages)
        assert self.subscription.take() == (set(), set())

    @invariant()
    def all_agree(self) -> None:
        fresh = load(self.node)
        assert_same_view(self.view, list(fresh.messages.values()))
        assert (self.view.uidnext, self.view.highestmodseq) == (fresh.uidnext, fresh.highestmodseq)
        assert self.view.uidnext == self.uidnext
        assert {uid: message.flags for uid, message in self.view.messages.items()} == self.model
        assert {uid: message.modseq for uid, message in self.view.messages.items()} == {
            uid: self.changed_at[uid] for uid in self.model
        }
        for since in range(self.view.highestmodseq + 1):
            above = {uid for uid in self.model if self.changed_at[uid] > since}
            assert above <= (self.view.changed_above(since) or set())
        assert self.view.unseen == sum(SEEN not in flags for flags in self.model.values())

    def teardown(self) -> None:
        consistency.check(self.node.connection)
        self.node.connection.close()


TestViewMachine = pytest.mark.filterwarnings("error")(ViewMachine.TestCase)
TestViewMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
