"""The node's checks: `check` compares its projections with its log, `scrub` its texts with their hashes.

One runs at a time, beside everything else, on a connection of its own: after each slice of some thousand rows the
event loop goes on. With a rate it rests after each mailbox and slice until as many rows a second were read. What is
mended is mended in the writer's turn; texts come from other nodes.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

import trio

from replicator.environment import Environment
from replicator.errors import MailError
from replicator.status import CheckStatus, Finding, TaskName
from replicator.store import reading, sweeps
from replicator.store.check import Comparison, Damage, chain_ids
from replicator.store.content import StoredText, read_text, replace_text
from replicator.store.history import HASH_BYTES
from replicator.store.mending import compare_and_mend, mend, mend_strays
from replicator.store.proof import log_lacks
from replicator.store.store import Reader, Store
from replicator.store.sweeps import Slice

log = logging.getLogger(__name__)

T = TypeVar("T")

FetchContent: TypeAlias = Callable[[bytes], Awaitable[bytes | None]]

FINDINGS_MAX = 10_000  # that are listed: 3 MiB of JSON
SUSPECTS_MAX = 100_000  # texts that are damaged, or were looked for in vain: 10 MiB
TRIES = 3  # of mending a mailbox that changes meanwhile; then the writer waits
FETCH_TIMEOUT_S = 30.0  # of one text, from all neighbours
FROM_LOG, FROM_PEER = "rebuilt from the log", "fetched from another node"


@dataclass(slots=True)
class _Task:
    """A check or scrub, present or past."""

    name: TaskName
    repair: bool
    rate: int | None
    started_ms: int
    state: str = "running"
    ended_ms: int | None = None
    done: int = 0
    total: int = 0
    counted: Counter[str] = field(default_factory=Counter)  # mailboxes, rows, contents
    damage: Counter[str] = field(default_factory=Counter)
    repaired: int = 0
    findings: list[Finding] = field(default_factory=list)
    error: str | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    def status(self) -> CheckStatus:
        count, is_running = self.damage.total(), self.state == "running"
        return CheckStatus(
            task=self.name,
            state=self.state,
            repair=self.repair,
            rate=self.rate,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            done=self.done,
            total=max(self.total, self.done),
            mailboxes=self.counted["mailboxes"],
            rows=self.counted["rows"],
            contents=self.counted["contents"],
            damage=dict(self.damage),
            repaired=self.repaired,
            unrepaired=count - self.repaired,
            findings=() if is_running else tuple(self.findings),
            left_out=count - len(self.findings),
            error=self.error,
        )


class Checks:
    """Belongs to the event loop. See `CheckControl`."""

    def __init__(self, store: Store, environment: Environment, fetch: FetchContent) -> None:
        self._store = store
        self._environment = environment
        self._fetch = fetch
        self._tasks: dict[str, _Task] = {}  # the last of each kind
        self._asked, self._begun = trio.open_memory_channel[_Task](1)  # one at a time

    def start(self, name: TaskName, *, repair: bool, rate: int | None) -> CheckStatus | None:
        """Begin one; None if one of either kind runs already."""
        if any(task.state == "running" for task in self._tasks.values()):
            return None
        task = self._tasks[name] = _Task(name, repair, rate, self._environment.clock_ms())
        self._asked.send_nowait(task)
        return task.status()

    def status(self, name: TaskName) -> CheckStatus | None:
        """The last one, or the one that runs; None if there was none since the node's start."""
        task = self._tasks.get(name)
        return task.status() if task else None

    async def wait(self, name: TaskName) -> None:
        """Return when none of this kind runs."""
        if (task := self._tasks.get(name)) is not None:
            await task.ended.wait()

    def cancel(self, name: TaskName) -> None:
        """End it soon; what it has mended stays so."""
        if (task := self._tasks.get(name)) is not None:
            task.scope.cancel()

    async def run(self) -> None:
        """Do what is asked for, until cancelled."""
        async for task in self._begun:
            with task.scope:
                task.error = await self._do(task)
            task.state = "failed" if task.error else "cancelled" if task.scope.cancelled_caught else "done"
            task.ended_ms = self._environment.clock_ms()
            task.ended.set()
            log.info("%s: %s, %d damages, %d mended", task.name, task.state, task.damage.total(), task.repaired)

    async def _do(self, task: _Task) -> str | None:
        """Why it could not be done, or None."""
        try:
            async with self._store.reader() as reader:
                work = _Work(task, self._store, self._environment, self._fetch, reader)
                await (work.check() if task.name == "check" else work.scrub())
        except (MailError, sqlite3.Error, _TooMuchError) as error:
            return (
                f"{error}; is the disk sound? If `node.db` is damaged, give the node a new one: it fills from its peers"
            )
        return None


class _TooMuchError(Exception):
    """More is damaged than a check is for."""


class _Work:
    """One task at work."""

    def __init__(
        self, task: _Task, store: Store, environment: Environment, fetch: FetchContent, reader: Reader
    ) -> None:
        self._task = task
        self._store = store
        self._environment = environment
        self._fetch = fetch
        self._reader = reader
        self._left: set[tuple[bytes | None, bytes | int]] = set()  # messages that are known to be wrong and stay so
        self._left_chains: set[bytes | str] = set()  # the same of mailboxes, and of users by their trees
        self._healed: dict[bytes, bool] = {}  # texts that were looked for -> found?

    async def check(self) -> None:
        """Pass 1: each mailbox and tree against the log; pass 2: tables against each other."""
        entries, messages, _ = await self._reader.read(sweeps.sizes)
        self._task.total = entries + 3 * messages
        if lacking := await self._reader.read(log_lacks):
            await self._note(Damage("log", f"{lacking} entries that came are not in the log any more", None), None)
        doubted = await self._unseen_chains()
        for chain_id in sorted(doubted):
            await self._compare(chain_id, doubted=True)
        after: bytes | None = None
        while some := await self._reader.read(partial(chain_ids, after=after)):
            after = some[-1]
            for chain_id in some:
                if chain_id not in doubted:
                    await self._compare(chain_id, doubted=False)
        strays = await self._reader.read(sweeps.strays_of_trees)
        await self._mend_strays([damage for damage in strays if not self._is_known(damage)])
        await self._sweep_rows(frozenset())
        await self._sweep_pointers()

    async def scrub(self) -> None:
        """Read every text; then see whose messages those are that are damaged, or missing."""
        _, messages, contents = await self._reader.read(sweeps.sizes)
        self._task.total = contents + messages
        suspects: set[bytes] = set()
        at: int | None = 0
        while at is not None:
            part: Slice[int, bytes] = await self._reader.read(partial(sweeps.damaged_texts, after=at))
            suspects.update(part.found)
            if len(suspects) > SUSPECTS_MAX:
                raise _TooMuchError(f"more than {SUSPECTS_MAX} texts are damaged")
            await self._pace("contents", part.size)
            at = part.after
        await self._sweep_rows(suspects)
        for content_hash in suspects - self._healed.keys():
            await self._heal(
                Damage("content", "its text is damaged; no message has it", None, content_hash=content_hash)
            )

    # ---- pass 1

    async def _unseen_chains(self) -> set[bytes]:
        found: set[bytes] = set()
        at: int | None = 0
        while at is not None:
            part: Slice[int, bytes] = await self._reader.read(partial(sweeps.unseen_chains, after=at))
            found.update(part.found)
            if len(found) > SUSPECTS_MAX:
                raise _TooMuchError(f"more than {SUSPECTS_MAX} mailboxes are behind the log")
            await self._pace("entries", part.size)
            at = part.after
        return found

    async def _compare(self, chain_id: bytes, *, doubted: bool) -> None:
        """A suspect is read twice before it counts, and mended if it has not changed since."""
        self._task.counted["mailboxes"] += 1
        mended = False
        comparison = await self._read_both(chain_id, doubted=doubted)
        if not comparison.damages:
            return
        for _ in range(TRIES):
            comparison = await self._read_both(chain_id, doubted=doubted)
            mended = self._task.repair and await self._store.write(partial(mend, comparison=comparison))
            if mended or not self._task.repair:
                break
        else:
            comparison = await self._store.write(partial(compare_and_mend, chain_id=chain_id, doubted=doubted))
            mended = True
        for damage in comparison.damages:
            await self._note(damage, FROM_LOG if mended and damage.can_be_mended else None)

    async def _read_both(self, chain_id: bytes, *, doubted: bool) -> Comparison:
        def begin(connection: sqlite3.Connection) -> Comparison:
            return Comparison(connection, chain_id, doubted)

        comparison = await self._reader.read(begin)
        steps = comparison.steps()
        total = 0
        try:
            while (size := await self._reader.read(lambda _: next(steps, None))) is not None:
                total += size
                await trio.lowlevel.checkpoint()
        finally:
            steps.close()
        await self._pace("rows", total)
        return comparison

    # ---- pass 2

    async def _sweep_pointers(self) -> None:
        at: sweeps.Key | None = sweeps.FIRST
        while at is not None:
            query = partial(sweeps.stray_pointers, after=at)
            part: Slice[sweeps.Key, Damage] = await self._reader.read(query)
            if part.found:
                part = await self._reader.read(query)
            await self._mend_strays([damage for damage in part.found if not self._is_known(damage)])
            await self._pace("rows", part.size)
            at = part.after

    async def _sweep_rows(self, suspects: set[bytes] | frozenset[bytes]) -> None:
        at: sweeps.Key | None = sweeps.FIRST
        while at is not None:
            query = partial(sweeps.stray_rows, after=at, suspects=suspects)
            part: Slice[sweeps.Key, Damage] = await self._reader.read(query)
            if part.found:
                part = await self._reader.read(query)
            found = [damage for damage in part.found if not self._is_known(damage)]
            await self._mend_strays([damage for damage in found if damage.kind != "content"])
            for damage in found:
                if damage.kind == "content":
                    await self._heal(damage)
            await self._pace("rows", part.size)
            at = part.after

    async def _mend_strays(self, damages: Sequence[Damage]) -> None:
        if damages and self._task.repair:
            await self._store.write(partial(mend_strays, damages=damages))
        for damage in damages:
            await self._note(damage, FROM_LOG if self._task.repair and damage.can_be_mended else None)

    # ---- texts

    async def _heal(self, damage: Damage) -> None:
        """Once for each text; it counts once, however many messages have it."""
        content_hash = damage.content_hash
        assert content_hash is not None
        if content_hash in self._healed:
            return
        if len(self._healed) >= SUSPECTS_MAX:
            raise _TooMuchError(f"more than {SUSPECTS_MAX} texts are missing or damaged")
        if await self._reader.read(partial(read_text, content_hash=content_hash)) is not None:
            return
        text: bytes | None = None
        if self._task.repair and _is_hash(content_hash):
            with trio.move_on_after(FETCH_TIMEOUT_S):
                text = await self._fetch(content_hash)
        self._healed[content_hash] = text is not None
        if text is None:
            what = f"{damage.what}, and no node that can be reached has it" if self._task.repair else damage.what
            await self._note(damage, None, what)
            return
        stored = await self._environment.run_in_thread(partial(StoredText.of, text))
        await self._store.write(lambda tx: replace_text(tx.connection, stored))
        await self._note(damage, FROM_PEER)

    # ---- the report

    def _is_known(self, damage: Damage) -> bool:
        """Whether it only follows from what was found, and not mended, before."""
        if damage.kind in {"by_uid", "folder", "subscription"}:
            return damage.mailbox_id in self._left_chains or damage.user in self._left_chains
        keys = (damage.guid, damage.uid)
        return any((damage.mailbox_id, key) in self._left for key in keys if key is not None)

    async def _note(self, damage: Damage, done: str | None, what: str | None = None) -> None:
        task = self._task
        task.damage[damage.kind] += 1
        task.repaired += done is not None
        if len(task.findings) >= FINDINGS_MAX:
            return
        name = None
        if damage.mailbox_id is not None and damage.user is not None:
            name = await self._reader.read(partial(reading.folder_name, mailbox_id=damage.mailbox_id))
        if done is None and damage.kind in {"by_uid", "by_guid"}:
            self._left |= {(damage.mailbox_id, key) for key in (damage.uid, damage.guid) if key is not None}
        if done is None and damage.kind in {"chain", "log"}:
            self._left_chains |= {key for key in (damage.mailbox_id, damage.user) if key is not None}
        task.findings.append(_finding(damage, name, what or damage.what, done))

    async def _pace(self, kind: str, size: int) -> None:
        """Count what was read, and rest as the rate has it."""
        self._task.counted[kind] += size
        self._task.done += size
        if self._task.rate is not None:
            await trio.sleep(size / self._task.rate)


def _finding(damage: Damage, name: str | None, what: str, done: str | None) -> Finding:
    """Columns that were tampered with may hold anything: what is not of its type is left out."""
    folder = _as(str, name) or _hexadecimal(damage.mailbox_id)
    guid = _hexadecimal(damage.content_hash) or _hexadecimal(damage.guid)
    return Finding(damage.kind, _as(str, damage.user), folder, _as(int, damage.uid), guid, what, done)


def _is_hash(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == HASH_BYTES


def _as(kind: type[T], value: T | None) -> T | None:
    return value if isinstance(value, kind) else None


def _hexadecimal(value: bytes | None) -> str | None:
    return value.hex() if isinstance(value, bytes) else None
