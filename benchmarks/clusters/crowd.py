"""Databases of nodes with very many users, all alike: written by the store's own writer, as those of `prepared` are.

One job of the writer creates some users' folders and fills them, one entry a mailbox. A process of its own does it; it
gets a `Crowd` as JSON on standard input. The entries leave the log, and each mailbox's head counts as saved in a
checkpoint that a manifest lists, as in a node that is in use for long. The checkpoints themselves are not written: that
would take hours, and nothing reads them while such a node runs.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

import trio

from benchmarks.clients.mails import MailTexts
from benchmarks.clusters.cluster import OBJECTS_OF
from benchmarks.clusters.prepared import CLUSTER, DATABASE, make_apart
from replicator.mail.mailstore import INBOX
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.catalog import Round
from replicator.store.checkpoints.checkpoint import Home
from replicator.store.checkpoints.manifest import write_manifest
from replicator.store.db import chain as chains
from replicator.store.db import schema
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import entry_removal
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.log.sequencing.sequencer import NewMail
from replicator.store.store import Store
from resync.entry import FolderCreate

TEXTS = 1000
TEXT_BYTES = 1024
NESTED = 3
"""Folders that one entry creates, each below the one before."""

USERS_A_JOB = 20
JOBS_BETWEEN_REMOVALS = 50
SEED = 60
WRITER = "dc1"
"""The node that has written the template: one of those that run, or they would wait for it."""

LIMIT_S = 2400.0
"""Seconds after which a preparation is taken for hung."""


@dataclass(frozen=True)
class Crowd:
    """Contents of each node that is to run in `directory`: `users`, each with so many mailboxes of so many messages.

    `template`: the file of which each node's database is a copy. It is made if it is missing, and stays.
    """

    directory: str
    sids: Sequence[str]
    template: str
    users: int
    mailboxes: int
    messages: int

    @property
    def names(self) -> list[str]:
        """The users' names."""
        return [f"user{number:06d}" for number in range(self.users)]

    @property
    def all_mailboxes(self) -> int:
        return self.users * self.mailboxes

    @property
    def all_messages(self) -> int:
        return self.all_mailboxes * self.messages


def prepare_crowd(crowd: Crowd) -> None:
    """Make the databases and manifests. Raises MeasurementError."""
    make_apart("benchmarks.clusters.crowd", asdict(crowd), LIMIT_S)


def folder_names(count: int) -> list[str]:
    """Return so many names: INBOX, and the rest in nests."""
    nests = ([f"Folder{nest:03d}{below}" for below in ("", "/Year", "/Year/Part")] for nest in range(count))
    return [INBOX, *(name for nest in nests for name in nest)][:count]


def _make(crowd: Crowd) -> None:
    template = Path(crowd.template)
    if not template.exists():
        unfinished = template.with_suffix(".unfinished")
        trio.run(_make_template, unfinished, crowd)
        unfinished.rename(template)
    for sid in crowd.sids:
        directory = Path(crowd.directory).resolve()
        path = directory / sid / DATABASE
        path.parent.mkdir(parents=True)
        shutil.copyfile(template, path)
        trio.run(_give, path, sid, f"file://{directory}/{OBJECTS_OF.format(sid=sid)}")


async def _make_template(path: Path, crowd: Crowd) -> None:
    environment = Environment()
    async with Store.open(path, environment.new_origin(WRITER), environment) as store:
        await store.write(lambda tx: schema.claim(tx.connection, WRITER, CLUSTER))
        await store.write(lambda tx: schema.begin(tx.connection))
        await store.count()  # of nothing yet; each commit carries it on
        await _fill(store, environment, crowd)
        await _note_checkpoints(store, environment)


async def _give(path: Path, sid: str, objects: str) -> None:
    """Give the database to a node that writes its checkpoints there."""
    environment = Environment()
    async with Store.open(path, environment.new_origin(sid), environment) as store:
        await store.write(partial(_own, sid=sid))
        await _publish(store, Archive(ObjectStore(objects, environment), Home(CLUSTER, sid)), environment.clock_ms())


def _own(tx: Transaction, sid: str) -> None:
    tx.connection.execute("UPDATE identity SET sid = ?", (sid,))


async def _fill(store: Store, environment: Environment, crowd: Crowd) -> None:
    made = MailTexts(TEXT_BYTES, SEED)
    texts = cycle([StoredBody.of(next(made)) for _ in range(TEXTS)])
    names = crowd.names
    for number, first in enumerate(range(0, len(names), USERS_A_JOB), 1):
        some = names[first : first + USERS_A_JOB]
        await store.write(partial(_move_in, environment=environment, users=some, crowd=crowd, texts=texts))
        if number % JOBS_BETWEEN_REMOVALS == 0:
            await _empty_log(store)
    await _empty_log(store)


async def _empty_log(store: Store) -> None:
    while (await store.write(partial(entry_removal.collect, upto=store.context))).entries:
        pass


def _move_in(
    tx: Transaction, environment: Environment, users: Sequence[str], crowd: Crowd, texts: Iterator[StoredBody]
) -> None:
    """Give the users their folders and mail."""
    spare_ids = iter(environment.new_guid, b"")
    now_ms = environment.clock_ms()
    innermost = [INBOX, *folder_names(crowd.mailboxes)[NESTED::NESTED]]
    if (crowd.mailboxes - 1) % NESTED:
        innermost.append(folder_names(crowd.mailboxes)[-1])
    for user in users:
        for name in innermost:
            folder_sequencer.create_folder(tx, user, name, environment.new_guid(), spare_ids=spare_ids)
    for entry in [one.entry for one in tx.commit.logged]:
        for folder in entry.changes:
            assert isinstance(folder, FolderCreate)
            key = MailboxKey(entry.user, folder.mailbox_id, folder.uidvalidity)
            mails = [NewMail(environment.new_guid(), now_ms, (), next(texts)) for _ in range(crowd.messages)]
            sequencer.save_all(tx, key, mails)


async def _note_checkpoints(store: Store, environment: Environment) -> None:
    """Let each head count as saved by the first round."""
    time, after = environment.clock_ms() << 16, b""
    while some := await store.read(partial(catalog.unsaved, after=after)):
        await store.write(partial(_note_saved, chain_ids=some, time=time))
        after = some[-1]


def _note_saved(tx: Transaction, chain_ids: Sequence[bytes], time: int) -> None:
    for chain_id in chain_ids:
        chain = chains.load(tx.connection, chain_id)
        assert chain is not None
        assert chain.head is not None
        head = NamedHead(chain.user, chain_id, chain.uidvalidity, chain.head, chain.highestmodseq, time)
        catalog.note_saved(tx, head, 1)


async def _publish(store: Store, archive: Archive, now_ms: int) -> None:
    """Put the manifest of the first round in force."""
    made = await archive.next_manifest(store.context, now_ms)
    async with store.reader() as reader:
        heads = await reader.read(partial(catalog.count_heads, number=1))
        listed = await reader.read(partial(catalog.heads_in, number=1))
        await archive.publish(made, write_manifest(made, listed))
    begun = Round(1, None, in_force=False, context=store.context, covered={}, position=store.tail.end, heads=heads)
    await store.write(partial(catalog.begin_manifest, begun=begun))
    await store.write(partial(catalog.note_manifest, number=1, made_ms=made.made_ms))
    await store.write(partial(catalog.put_in_force, number=1))


if __name__ == "__main__":
    _make(Crowd(**json.load(sys.stdin)))
