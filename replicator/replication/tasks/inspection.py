"""Common parts of checks and scrubs: reading in slices, reporting damage, repairing it.

They read on their own connection; after each slice of some thousand rows the event loop goes on. With a rate, they rest
after each slice to keep to as many rows per second. Repairs run in the writer's turn; bodies are fetched from other
nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias, TypeVar

import trio

from replicator.errors import MailError
from replicator.replication.tasks.damage_owners import named
from replicator.replication.tasks.runner import TaskError
from replicator.store.bodies.body_rows import is_here, read_body
from replicator.store.db import queries
from replicator.store.db.damage import REMEDY
from replicator.store.db.entry_validation import HASH_BYTES
from replicator.store.db.queries import Connection
from replicator.store.repair import table_check
from replicator.store.repair.mailbox_check import Defect
from replicator.store.repair.row_repair import mend_strays
from replicator.store.repair.table_check import TableSlice
from replicator.store.store import Reader, Store
from replicator.tasks import CheckStatus, Finding

T = TypeVar("T")

HealBody: TypeAlias = Callable[[bytes], Awaitable[bool]]
"""A function that replaces a damaged or missing body, given its hash; returns False if no body is available."""

FINDINGS_MAX = 10_000  # findings listed: 3 MiB of JSON
SUSPECTS_MAX = 100_000  # bodies that are damaged or were not found at any node: 10 MiB
FROM_LOG, FROM_PEER = "rebuilt from the log", "fetched from another node"


@contextmanager
def advising() -> Iterator[None]:
    """Raise TaskError with advice if the database itself fails."""
    try:
        yield
    except (MailError, TaskError) as error:
        raise TaskError(f"{error}; check the disk; if `node.db` is damaged, {REMEDY}") from error


class Inspection:
    """The state of one check or scrub. `reader` is its own connection, `status` its report."""

    def __init__(self, status: CheckStatus, store: Store, heal_body: HealBody, reader: Reader) -> None:
        self.status = status
        self.store = store
        self.reader = reader
        self._heal_body = heal_body
        self._left: set[tuple[bytes | None, bytes | int]] = set()  # messages that are damaged and were not repaired
        self._left_chains: set[bytes | str] = set()  # likewise, mailboxes, and users for their trees
        self._healed: dict[bytes, bool] = {}  # hashes of bodies that were looked for -> found?

    async def pace(self, size: int) -> None:
        """Count what was read, and rest according to the rate."""
        self.status.count(size)
        if self.status.rate is not None:
            await trio.sleep(size / self.status.rate)

    async def note(self, damage: Defect, done: str | None, what: str | None = None) -> None:
        """Report damage; `done` says how it was repaired, None that it was not."""
        status = self.status
        status.damage[damage.kind] = status.damage.get(damage.kind, 0) + 1
        status.repaired += done is not None
        status.unrepaired += done is None
        if len(status.findings) >= FINDINGS_MAX:
            status.left_out += 1
            return
        name = None
        if damage.mailbox_id is not None and damage.user is not None:
            name = await self.reader.read(partial(queries.folder_name, mailbox_id=damage.mailbox_id))
        if done is None and damage.kind in {"by_uid", "by_guid"}:
            self._left |= {(damage.mailbox_id, key) for key in (damage.uid, damage.guid) if key is not None}
        if done is None and damage.kind in {"chain", "log"}:
            self._left_chains |= {key for key in (damage.mailbox_id, damage.user) if key is not None}
        status.findings.append(_finding(damage, name, what or damage.what, done))

    async def mend_strays(self, damages: Sequence[Defect]) -> None:
        """Delete and report rows that belong to nothing, except those that only follow from damage known before."""
        damages = [damage for damage in damages if not self._is_known(damage)]
        if damages and self.status.repair:
            await self.store.write(partial(mend_strays, damages=damages))
        for damage in damages:
            await self.note(damage, FROM_LOG if self.status.repair and damage.can_be_mended else None)

    async def sweep_rows(self, suspects: set[bytes] | frozenset[bytes] = frozenset()) -> None:
        """Check all messages: their mailboxes and bodies must exist, and the bodies must not be among the suspects."""
        at: table_check.Key | None = table_check.FIRST
        while at is not None:
            query = partial(table_check.stray_rows, after=at, suspects=suspects)
            part: TableSlice[table_check.Key, Defect] = await self.reader.read(query)
            if part.found:
                part = await self.reader.read(query)
            found = [damage for damage in part.found if not self._is_known(damage)]
            await self.mend_strays([damage for damage in found if damage.kind != "content"])
            for damage in found:
                if damage.kind == "content":
                    await self.heal(damage)
            self.status.rows += part.size
            await self.pace(part.size)
            at = part.after

    async def heal_rest(self, suspects: set[bytes]) -> None:
        """Heal the suspects that no message has led to."""
        for content_hash in suspects - self._healed.keys():
            await self.heal(Defect("content", "its body is damaged", None, content_hash=content_hash))

    async def heal(self, damage: Defect) -> None:
        """Fetch a body from other nodes, once, and report it once, however many messages have it."""
        content_hash = damage.content_hash
        assert content_hash is not None
        if content_hash in self._healed:
            return
        if len(self._healed) >= SUSPECTS_MAX:
            raise TaskError(f"more than {SUSPECTS_MAX} bodies are missing or damaged")
        if await self.reader.read(partial(read_body, content_hash=content_hash)) is not None:
            return
        needed = partial(_is_needed, damage=damage)
        if not await self.reader.read(needed):  # the message was expunged meanwhile
            return
        is_healed = False
        if self.status.repair and _is_hash(content_hash):
            is_healed = await self._heal_body(content_hash)
        if not is_healed and not await self.reader.read(needed):
            return
        self._healed[content_hash] = is_healed
        if not is_healed:
            what = f"{damage.what}, and no reachable node has it" if self.status.repair else damage.what
            await self.note(damage, None, what)
            return
        await self.note(damage, FROM_PEER)

    async def heal_attachments(self, damage: Defect) -> None:
        """Fetch missing attachments of a body that is here."""
        assert damage.content_hash is not None
        is_healed = self.status.repair and await self._heal_body(damage.content_hash)
        await self.note(damage, FROM_PEER if is_healed else None)

    async def name_messages(self) -> None:
        """Add the owners to the findings about damaged bodies."""
        self.status.findings = await named(self.status.findings, self.reader, self.pace)

    def _is_known(self, damage: Defect) -> bool:
        """Return True if this damage only follows from damage that was reported before and not repaired."""
        if damage.kind in {"by_uid", "folder", "subscription", "annotation"}:
            return damage.mailbox_id in self._left_chains or damage.user in self._left_chains
        keys = (damage.guid, damage.uid)
        return any((damage.mailbox_id, key) in self._left for key in keys if key is not None)


def _is_needed(connection: Connection, damage: Defect) -> bool:
    """Return True if the message still has this body, or for damage without a message, if the body is still here."""
    if damage.mailbox_id is None or damage.uid is None:
        return damage.content_hash is not None and is_here(connection, damage.content_hash)
    shown = queries.content_hash_of_uid(connection, damage.mailbox_id, damage.uid)
    return shown == damage.content_hash


def _finding(damage: Defect, name: str | None, what: str, done: str | None) -> Finding:
    """Build the finding. Damaged columns may hold anything, so values of the wrong type are left out."""
    folder = _as(str, name) or _hexadecimal(damage.mailbox_id)
    guid = _hexadecimal(damage.content_hash) or _hexadecimal(damage.guid)
    return Finding(damage.kind, _as(str, damage.user), folder, _as(int, damage.uid), guid, what, done)


def _is_hash(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == HASH_BYTES


def _as(kind: type[T], value: T | None) -> T | None:
    return value if isinstance(value, kind) else None


def _hexadecimal(value: bytes | None) -> str | None:
    return value.hex() if isinstance(value, bytes) else None
