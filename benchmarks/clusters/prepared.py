"""Databases of nodes that already have much mail: written by the store's own writer, without clients, doors and links.

A million messages by LMTP would take an hour. A separate process writes them with the jobs that a master runs, so that
the result is what a node would have. Then the entries leave the log as they do once checkpoints stand, and each node
gets a copy under its own name. The process gets a `Prepared` as JSON on standard input. No other benchmark uses the
store's writer.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import MeasurementError
from replicator.mail.mailstore import INBOX
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries, schema
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import entry_removal
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.store import Store

CLUSTER = "mail"
AT_ONCE = 500  # messages of one job of the writer
KEPT_MAX = 1000  # bodies that may be repeated
DATABASE = "node.db"
PREPARED_SEED = 30  # of the mails
LIMIT_S = 900.0
"""Seconds after which a preparation is taken for hung."""


@dataclass(frozen=True)
class Prepared:
    """Contents of each node that is to run in `directory`.

    `boxes`: user, folder, messages. `texts`: number of distinct bodies, of `size_bytes` bytes each.
    """

    directory: str
    sids: Sequence[str]
    boxes: Sequence[tuple[str, str, int]]
    texts: int
    size_bytes: int
    keep_log: bool = False


def prepare(wanted: Prepared) -> None:
    """Make the databases. Raises MeasurementError."""
    make_apart("benchmarks.clusters.prepared", asdict(wanted), LIMIT_S)


def make_apart(module: str, wanted: Mapping[str, object], limit_s: float) -> None:
    """Have a module make databases in a process of its own, which gets `wanted` as JSON. Raises MeasurementError."""
    told = json.dumps(wanted).encode()
    try:
        subprocess.run([sys.executable, "-m", module], input=told, capture_output=True, check=True, timeout=limit_s)
    except subprocess.CalledProcessError as error:
        raise MeasurementError(f"no databases: {error.stderr.decode()[-1000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"databases are not made in {limit_s:.0f} s") from error


class _Texts:
    """A number of distinct bodies, which are then repeated; if there are very many, none is repeated or kept."""

    def __init__(self, distinct: int, size_bytes: int) -> None:
        self._made = MailTexts(size_bytes, PREPARED_SEED)
        self._left = distinct
        self._kept: deque[StoredBody] = deque(maxlen=KEPT_MAX)

    def take(self, count: int) -> list[StoredBody]:
        return [self._next() for _ in range(count)]

    def _next(self) -> StoredBody:
        if self._left:
            self._left -= 1
            text = StoredBody.of(next(self._made))
        else:
            text = self._kept.popleft()
        self._kept.append(text)
        return text


async def _make(wanted: Prepared) -> None:
    paths = [Path(wanted.directory) / sid / DATABASE for sid in wanted.sids]
    for path in paths:
        path.parent.mkdir(parents=True)
    environment, texts = Environment(), _Texts(wanted.texts, wanted.size_bytes)
    async with Store.open(paths[0], environment.new_origin(wanted.sids[0]), environment) as store:
        await store.write(lambda tx: schema.claim(tx.connection, wanted.sids[0], CLUSTER))
        await store.write(lambda tx: schema.begin(tx.connection))
        for user, folder, messages in wanted.boxes:
            key = await _create(store, environment, user, folder)
            for first in range(0, messages, AT_ONCE):
                some = texts.take(min(AT_ONCE, messages - first))
                await store.write(partial(_save_all, environment=environment, key=key, texts=some))
        while not wanted.keep_log and (await store.write(partial(entry_removal.collect, upto=store.context))).entries:
            pass
    for sid, path in zip(wanted.sids[1:], paths[1:], strict=True):
        shutil.copyfile(paths[0], path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE identity SET sid = ?", (sid,))


async def _create(store: Store, environment: Environment, user: str, folder: str) -> MailboxKey:
    """Create the folder, and INBOX, which every user has."""
    for name in dict.fromkeys((INBOX, folder)):
        if name not in await store.read(lambda reader: queries.folders(reader, user)):
            spare_ids = iter(environment.new_guid, b"")
            create = partial(folder_sequencer.create_folder, user=user, name=name, mailbox_id=environment.new_guid())
            await store.write(partial(create, spare_ids=spare_ids))
    return (await store.read(lambda reader: queries.folders(reader, user)))[folder].key(user)


def _save_all(tx: Transaction, environment: Environment, key: MailboxKey, texts: Sequence[StoredBody]) -> None:
    for text in texts:
        guid, now_ms = environment.new_guid(), environment.clock_ms()
        sequencer.save(tx, key, text, guid=guid, received_ms=now_ms, flags=())


if __name__ == "__main__":
    trio.run(_make, Prepared(**json.load(sys.stdin)))
