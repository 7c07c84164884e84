"""A node's process is killed again and again at random moments; what it had acknowledged must be there.

SIGKILL leaves what the kernel has in its cache: this tests what is written and in which order, not fsync, for which
there is test_power_cut. More rounds: CRASH_ROUNDS=5000; another campaign: CRASH_SEED=7.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody, read_body
from replicator.store.db import queries
from replicator.store.log import sequencer
from replicator.store.store import Store
from tests.effort import examples
from tests.store.consistency import check
from tests.store.crash_child import MAILBOXES, USER, Step, body_of

ROUNDS = int(os.environ.get("CRASH_ROUNDS", examples(30, 60)))
SEED = int(os.environ.get("CRASH_SEED", "1"))
ROUNDS_A_DATABASE = 10
DEADLINE_S = 60  # a round that takes so long hangs
ROOT = Path(__file__).parents[2]

Flags = frozenset[str] | None
"""None: whatever they are. A copy has those of its original."""


class Truth:
    """What the node has acknowledged and shown in all its lives so far, and what it may have done besides."""

    def __init__(self) -> None:
        self.messages: list[dict[int, tuple[bytes, Flags]]] = [{} for _ in MAILBOXES]
        self.named: list[dict[int, bytes]] = [{} for _ in MAILBOXES]
        self.shown = [(1, 0) for _ in MAILBOXES]  # UIDNEXT, HIGHESTMODSEQ
        self.folders: dict[bytes, str] = {}
        self.asked: dict[int, Step] = {}

    def note(self, step: Step) -> None:
        """The node was asked, or has answered."""
        if not step.done:
            self.asked[step.worker] = step
            return
        del self.asked[step.worker]
        if step.folder:
            self.folders = self._tree_after(step)
            return
        messages, shown = self.messages[step.mailbox], self.shown[step.mailbox]
        self.shown[step.mailbox] = max(shown[0], step.uidnext), max(shown[1], step.modseq)
        for uid, guid in zip(step.uids, map(bytes.fromhex, step.guids), strict=False):
            self.name(step.mailbox, uid, guid)
            messages[uid] = guid, frozenset() if step.op == "save" else None
        for uid in step.uids:
            if step.op == "expunge":
                del messages[uid]
            elif step.op == "flag":
                guid, flags = messages[uid]
                messages[uid] = guid, None if flags is None else flags | {step.flag}

    def name(self, mailbox: int, uid: int, guid: bytes) -> None:
        assert self.named[mailbox].setdefault(uid, guid) == guid, f"UID {uid} has named two messages"

    def compare(self, mailbox: int, found: Mapping[int, tuple[bytes, frozenset[str]]]) -> None:
        """These are the mailbox's messages in the next life."""
        asked = [step for step in self.asked.values() if step.mailbox == mailbox and not step.folder]
        may_appear = {bytes.fromhex(guid) for step in asked for guid in step.guids}
        may_go = {uid for step in asked if step.op == "expunge" for uid in step.uids}
        may_get = {uid: {step.flag} for step in asked if step.op == "flag" for uid in step.uids}
        for uid, (guid, flags) in found.items():
            self.name(mailbox, uid, guid)
            if uid not in self.messages[mailbox]:
                assert guid in may_appear, f"UID {uid} came from nowhere"
                continue
            known_guid, known_flags = self.messages[mailbox][uid]
            assert guid == known_guid
            assert known_flags is None or flags in (known_flags, known_flags | may_get.get(uid, set()))
        missing = self.messages[mailbox].keys() - found.keys()
        assert missing <= may_go, f"acknowledged and lost: UIDs {sorted(missing - may_go)}"
        self.messages[mailbox] = dict(found)

    def compare_tree(self, found: dict[bytes, str]) -> None:
        asked = [step for step in self.asked.values() if step.folder]
        assert found in [self.folders, *map(self._tree_after, asked)]
        self.folders = found

    def _tree_after(self, step: Step) -> dict[bytes, str]:
        folder = bytes.fromhex(step.folder)
        others = {known: name for known, name in self.folders.items() if known != folder}
        return others if step.op == "delete" else others | {folder: step.name}


class Victim:
    """Starts processes and kills them."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._buffer = b""

    async def live(self, path: Path, origin: str, rng: random.Random, truth: Truth) -> None:
        """One life, ended after some acknowledgements, which `truth` hears of."""
        await self._stdin.send_all(f"{path} {origin} {rng.randrange(1 << 32)}\n".encode())
        pid = (await self._line())["pid"]
        acknowledgements = rng.choice([rng.randrange(3), rng.randrange(100)])
        alive = True
        while True:
            if alive and acknowledgements == 0:
                os.kill(int(str(pid)), signal.SIGKILL)
                alive = False
            line = await self._line()
            if "exit" in line:
                assert line["exit"] == -signal.SIGKILL, "it died of something else: see its traceback"
                return
            truth.note(Step(**line))  # type: ignore[arg-type]
            acknowledgements -= bool(line["done"])

    async def _line(self) -> dict[str, object]:
        while b"\n" not in self._buffer:
            received = await self._stdout.receive_some()
            assert received, "the parent of the victims died: see its traceback"
            self._buffer += bytes(received)
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, object] = json.loads(line)
        return found


@asynccontextmanager
async def victims() -> AsyncIterator[Victim]:
    command = [sys.executable, "-m", "tests.store.crash_child"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        yield Victim(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                await pipe.aclose()


async def compare(path: Path, origin: str, rng: random.Random, truth: Truth) -> None:
    """The node lives again, here, and shows what it must; then it takes a mail, like any other life."""
    async with Store.open(path, origin, Environment()) as store:
        await store.read(check)
        truth.compare_tree(
            {
                record.mailbox_id: name
                for name, record in (await store.read(lambda db: queries.folders(db, USER))).items()
            }
        )
        for mailbox, key in enumerate(MAILBOXES):
            view = await store.view(key)
            assert view.uidnext >= truth.shown[mailbox][0]
            assert view.highestmodseq >= truth.shown[mailbox][1]
            truth.compare(mailbox, {uid: (message.guid, message.flags) for uid, message in view.messages.items()})
            for message in view.messages.values():
                assert await store.read(partial(read_body, content_hash=message.content_hash)) == body_of(message.guid)
        truth.asked.clear()
        guid = rng.randbytes(16)
        stored = StoredBody.of(body_of(guid))
        placed = await store.write(
            lambda tx: sequencer.save(tx, MAILBOXES[0], stored, guid=guid, received_ms=1, flags=())
        )
        view = await store.view(MAILBOXES[0])
        asked = Step(-1, "save", guids=[guid.hex()])
        truth.note(asked)
        shown = replace(asked, done=True, uids=list(placed.uids), uidnext=view.uidnext, modseq=view.highestmodseq)
        truth.note(shown)


async def test_what_was_acknowledged_survives_any_number_of_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    path, truth = Path(), Truth()
    async with victims() as victim:
        for number in range(ROUNDS):
            print(f"CRASH_SEED={SEED}, round {number}")  # noqa: T201 - shown if the test fails
            if number % ROUNDS_A_DATABASE == 0:
                path, truth = tmp_path / f"{number}.db", Truth()
            with trio.fail_after(DEADLINE_S):
                await victim.live(path, f"dc1.{number}", rng, truth)
                await compare(path, f"dc1.{number}p", rng, truth)
