"""The records of references that a database would keep, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from replicator.store.attachments.construction import Holding
from replicator.store.attachments.store import Attachments
from replicator.store.attachments.sweep import SweepFinding, sweep


class MemoryRecords:
    def __init__(self, *recorded: Holding) -> None:
        self.recorded = set(recorded)

    def holders(self, content_hash: bytes, among: Iterable[str]) -> AbstractSet[str]:
        return {one.holder for one in self.recorded if one.hash == content_hash and not one.kept} & set(among)

    def is_held(self, content_hash: bytes) -> bool:
        return any(one.hash == content_hash and not one.kept for one in self.recorded)

    def is_kept(self, holder: str) -> bool:
        return any(one.holder == holder and one.kept for one in self.recorded)

    def holdings(self, after: Holding | None, limit: int) -> Sequence[Holding]:
        ordered = sorted(self.recorded, key=_key)
        return [one for one in ordered if after is None or _key(one) > _key(after)][:limit]


def _key(holding: Holding) -> tuple[bytes, str]:
    return holding.hash, holding.holder


def sweep_all(store: Attachments, records: MemoryRecords, *, repair: bool = True) -> list[SweepFinding]:
    return [finding for part in sweep(store, records, repair=repair) for finding in part.found]
