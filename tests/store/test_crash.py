"""A node's process is killed repeatedly at random moments, and must keep all that it has acknowledged.

SIGKILL leaves the kernel's cache intact. So this tests what is written and in which order; test_power_cut tests fsync.
CRASH_ROUNDS=5000 makes more rounds, CRASH_SEED=7 another sequence.
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
from replicator.store.log.sequencing import sequencer
from replicator.store.store import Store
from tests.effort import examples
from tests.store.consistency import check
from tests.store.crash_child import MAILBOXES, USER, Step, body_of

ROUNDS = int(os.environ.get("CRASH_ROUNDS", examples(15, 30)))
SEED = int(os.environ.get("CRASH_SEED", "1"))
ROUNDS_A_DATABASE = 10
DEADLINE_S = 60  # a longer round counts as a hang
ROOT = Path(__file__).parents[2]

Flags = frozenset[str] | None
"""None stands for unknown flags: a copy has those of its original."""


class ExpectedState:
    """The changes that the node has acknowledged in all runs so far, and those that it may have made unacknowledged."""

    def __init__(self) -> None:
        self.messages: list[dict[int, tuple[bytes, Flags]]] = [{} for _ in MAILBOXES]
        self.guids_by_uid: list[dict[int, bytes]] = [{} for _ in MAILBOXES]
        self.shown = [(1, 0) for _ in MAILBOXES]  # UIDNEXT, HIGHESTMODSEQ
        self.folders: dict[bytes, str] = {}
        self.asked: dict[int, Step] = {}

    def note(self, step: Step) -> None:
        """Note a request, or its acknowledgement."""
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
        assert self.guids_by_uid[mailbox].setdefault(uid, guid) == guid, f"UID {uid} has named two messages"

    def compare(self, mailbox: int, found: Mapping[int, tuple[bytes, frozenset[str]]]) -> None:
        """Compare with the mailbox's messages in the next run."""
        asked = [step for step in self.asked.values() if step.mailbox == mailbox and not step.folder]
        may_appear = {bytes.fromhex(guid) for step in asked for guid in step.guids}
        may_go = {uid for step in asked if step.op == "expunge" for uid in step.uids}
        may_get = {uid: {step.flag} for step in asked if step.op == "flag" for uid in step.uids}
        for uid, (guid, flags) in found.items():
            self.name(mailbox, uid, guid)
            if uid not in self.messages[mailbox]:
                assert guid in may_appear, f"no request explains UID {uid}"
                continue
            known_guid, known_flags = self.messages[mailbox][uid]
            assert guid == known_guid
            assert known_flags is None or flags in (known_flags, known_flags | may_get.get(uid, set()))
        missing = self.messages[mailbox].keys() - found.keys()
        assert missing <= may_go, f"acknowledged UIDs are lost: {sorted(missing - may_go)}"
        self.messages[mailbox] = dict(found)

    def compare_tree(self, found: dict[bytes, str]) -> None:
        asked = [step for step in self.asked.values() if step.folder]
        assert found in [self.folders, *map(self._tree_after, asked)]
        self.folders = found

    def _tree_after(self, step: Step) -> dict[bytes, str]:
        folder = bytes.fromhex(step.folder)
        others = {known: name for known, name in self.folders.items() if known != folder}
        return others if step.op == "delete" else others | {folder: step.name}


class CrashRunner:
    """A process that starts the children to be killed, and this test's end of its pipes."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._buffer = b""

    async def run_and_kill(self, path: Path, origin: str, rng: random.Random, expected: ExpectedState) -> None:
        """Start a child, note its steps in `expected`, and kill it after a random number of acknowledgements."""
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
                assert line["exit"] == -signal.SIGKILL, "the child ended by itself: see its traceback"
                return
            expected.note(Step(**line))  # type: ignore[arg-type]
            acknowledgements -= bool(line["done"])

    async def _line(self) -> dict[str, object]:
        while b"\n" not in self._buffer:
            received = await self._stdout.receive_some()
            assert received, "the parent of the children ended: see its traceback"
            self._buffer += bytes(received)
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, object] = json.loads(line)
        return found


@asynccontextmanager
async def crash_runner() -> AsyncIterator[CrashRunner]:
    command = [sys.executable, "-m", "tests.store.crash_child"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        yield CrashRunner(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                await pipe.aclose()


async def compare(path: Path, origin: str, rng: random.Random, expected: ExpectedState) -> None:
    """Open the database in this process, compare it with `expected`, and save one message."""
    async with Store.open(path, origin, Environment()) as store:
        await store.read(check)
        expected.compare_tree(
            {
                record.mailbox_id: name
                for name, record in (await store.read(lambda db: queries.folders(db, USER))).items()
            }
        )
        for mailbox, key in enumerate(MAILBOXES):
            view = await store.view(key)
            assert view.uidnext >= expected.shown[mailbox][0]
            assert view.highestmodseq >= expected.shown[mailbox][1]
            expected.compare(mailbox, {uid: (message.guid, message.flags) for uid, message in view.messages.items()})
            for message in view.messages.values():
                assert await store.read(partial(read_body, content_hash=message.content_hash)) == body_of(message.guid)
        expected.asked.clear()
        guid = rng.randbytes(16)
        stored = StoredBody.of(body_of(guid))
        placed = await store.write(
            lambda tx: sequencer.save(tx, MAILBOXES[0], stored, guid=guid, received_ms=1, flags=())
        )
        view = await store.view(MAILBOXES[0])
        asked = Step(-1, "save", guids=[guid.hex()])
        expected.note(asked)
        shown = replace(asked, done=True, uids=list(placed.uids), uidnext=view.uidnext, modseq=view.highestmodseq)
        expected.note(shown)


async def test_acknowledged_changes_survive_any_number_of_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    path, expected = Path(), ExpectedState()
    async with crash_runner() as runner:
        for number in range(ROUNDS):
            print(f"CRASH_SEED={SEED}, round {number}")  # noqa: T201 - shown if the test fails
            if number % ROUNDS_A_DATABASE == 0:
                path, expected = tmp_path / f"{number}.db", ExpectedState()
            with trio.fail_after(DEADLINE_S):
                await runner.run_and_kill(path, f"dc1.{number}", rng, expected)
                await compare(path, f"dc1.{number}p", rng, expected)
