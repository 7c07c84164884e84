"""The process that test_crash kills: it changes mail and folders, and reports every step on standard output.

It reads lines `path origin seed`. For each line it forks a child, so that modules are imported only once, and reports
the child's exit. A child reports a step when it requests it, and again with the result when it is acknowledged.
"""

import json
import os
import random
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import trio

from protocol.values import UidSet
from replicator.mail.view import MailboxView
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey, folders
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.log.sequencing.sequencer import CopySource
from replicator.store.store import Store
from tests.store.harness import connection_of

USER: Final = "alice"
MAILBOXES: Final = tuple(MailboxKey(USER, bytes([number]) * 16, 7) for number in (1, 2, 3))
FLAGS: Final = ("\\Seen", "\\Flagged", "$Later")
WORKERS: Final = 8
CHECKPOINT_PAGES: Final = 30  # few, so that the database file itself is written under load too


@dataclass(frozen=True)
class Step:
    """One request. Once it is acknowledged (`done`), `uidnext` and `modseq` are those of the mailbox."""

    worker: int
    op: str
    done: bool = False
    mailbox: int = 0
    uids: list[int] = field(default_factory=list)  # the new ones of save and copy, else those to change
    guids: list[str] = field(default_factory=list)  # those that may appear; once done, those that did
    flag: str = ""
    folder: str = ""
    name: str = ""
    uidnext: int = 0
    modseq: int = 0


def report(what: object) -> None:
    """Print a line of JSON in one write, so that a killed process leaves no half line."""
    os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


def body_of(guid: bytes) -> bytes:
    """Return the body that follows from the second half of a GUID; copies with a new GUID keep that half."""
    number = int.from_bytes(guid[8:])
    if number % 8 == 0:
        return b"a body that many messages share"
    return b"Subject: %d\r\n\r\n" % number + random.Random(number).randbytes(number % 20_000)


class Worker:
    """A client that makes one step at a time, on messages that no other worker touches."""

    def __init__(self, store: Store, number: int, rng: random.Random, views: list[MailboxView]) -> None:
        self._store = store
        self._number = number
        self._rng = rng
        self._views = views
        self._own = [[uid for uid in view.messages if uid % WORKERS == number] for view in views]

    async def run(self) -> None:
        steps = (self._save, self._save, self._save, self._flag, self._expunge, self._copy)
        while True:
            mailbox = self._rng.randrange(len(MAILBOXES))
            await self._rng.choice(steps)(mailbox)

    def _some(self, mailbox: int) -> list[int]:
        own = self._own[mailbox]
        return sorted(self._rng.sample(own, min(len(own), self._rng.randint(1, 3))))

    def _tell_done(self, asked: Step, uids: list[int]) -> None:
        view = self._views[asked.mailbox]
        guids = [view.messages[uid].guid.hex() for uid in uids] if asked.op in {"save", "copy"} else []
        self._own[asked.mailbox] += uids if guids else []
        told = {"done": True, "uids": uids, "guids": guids, "uidnext": view.uidnext, "modseq": view.highestmodseq}
        report(asdict(asked) | told)

    async def _save(self, mailbox: int) -> None:
        guid = self._rng.randbytes(16)
        step = Step(self._number, "save", mailbox=mailbox, guids=[guid.hex()])
        report(asdict(step))
        stored = StoredBody.of(body_of(guid))
        placed = await self._store.write(
            lambda tx: sequencer.save(tx, MAILBOXES[mailbox], stored, guid=guid, received_ms=1, flags=())
        )
        self._tell_done(step, list(placed.uids))

    async def _copy(self, mailbox: int) -> None:
        source = (mailbox + 1) % len(MAILBOXES)
        rows = [self._views[source].messages[uid] for uid in self._some(source)]
        if not rows:
            return
        wanted = [CopySource(row.uid, row.guid, self._rng.randbytes(8) + row.guid[8:]) for row in rows]
        guids = [guid.hex() for want in wanted for guid in (want.guid, want.spare_guid)]
        step = Step(self._number, "copy", mailbox=mailbox, guids=guids)
        report(asdict(step))
        placed = await self._store.write(
            lambda tx: sequencer.copy(tx, MAILBOXES[source].mailbox_id, wanted, MAILBOXES[mailbox])
        )
        assert placed is not None
        self._tell_done(step, list(placed.uids))

    async def _flag(self, mailbox: int) -> None:
        uids = self._some(mailbox)
        if not uids:
            return
        step = Step(self._number, "flag", mailbox=mailbox, uids=uids, flag=self._rng.choice(FLAGS))
        report(asdict(step))
        await self._store.write(
            lambda tx: sequencer.store(tx, MAILBOXES[mailbox], UidSet.of(uids), added=[step.flag], removed=())
        )
        self._tell_done(step, uids)

    async def _expunge(self, mailbox: int) -> None:
        newest = self._own[mailbox][-1:]  # the UID that a defect would most likely reuse
        uids = self._rng.choice([newest, self._some(mailbox)])
        if not uids:
            return
        self._own[mailbox] = [uid for uid in self._own[mailbox] if uid not in uids]
        step = Step(self._number, "expunge", mailbox=mailbox, uids=uids)
        report(asdict(step))
        await self._store.write(lambda tx: sequencer.expunge(tx, MAILBOXES[mailbox], UidSet.of(uids)))
        self._tell_done(step, uids)


async def change_folders(store: Store, rng: random.Random) -> None:
    """Change the folder tree, as the only client that does so."""
    known = {record.mailbox_id: name for name, record in (await store.read(lambda db: folders(db, USER))).items()}
    while True:
        new = rng.randbytes(16)
        op = rng.choice(["create", "rename", "delete"]) if known else "create"
        folder = new if op == "create" else rng.choice(sorted(known))
        step = Step(WORKERS, op, folder=folder.hex(), name="" if op == "delete" else new.hex())
        report(asdict(step))
        match op:
            case "create":
                await store.write(
                    lambda tx: folder_sequencer.create_folder(tx, USER, step.name, folder, spare_ids=iter(()))  # noqa: B023
                )
            case "rename":
                await store.write(
                    lambda tx: folder_sequencer.rename_folder(tx, USER, folder, step.name, spare_ids=iter(()))  # noqa: B023
                )
            case _:
                await store.write(lambda tx: folder_sequencer.delete_folder(tx, USER, folder))  # noqa: B023
        known[folder] = step.name
        if not step.name:
            del known[folder]
        report(asdict(step) | {"done": True})


async def load(path: Path, origin: str, seed: int) -> None:
    async with Store.open(path, origin, Environment()) as store, trio.open_nursery() as nursery:
        connection_of(store).execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        views = [await store.view(key) for key in MAILBOXES]
        for number in range(WORKERS):
            nursery.start_soon(Worker(store, number, random.Random(f"{seed} {number}"), views).run)
        nursery.start_soon(change_folders, store, random.Random(seed))


def main() -> None:
    for line in sys.stdin:
        path, origin, seed = line.split()
        child = os.fork()
        if child == 0:
            report({"pid": os.getpid()})
            trio.run(load, Path(path), origin, int(seed))
            os._exit(0)
        report({"exit": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})


if __name__ == "__main__":
    main()
