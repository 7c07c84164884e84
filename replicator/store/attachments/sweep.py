"""Sweep: finds and repairs what crashes leave in the directory, a little at a time.

A sweep judges only names of owners that `owners/` assigns to this node. What is dead or has no holder belongs to no
node, and any node may finish its removal (docs/attachments.md). Nothing live is touched, because of the order of the
checks: first the directory is listed, then the holders in flight are read, then the recorded ones. A holder is in
flight before its file exists, and until after it has been recorded. So a holder that was listed, was not in flight
afterwards, and was not recorded after that, was released or never came to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, Protocol

from replicator.store.attachments import linking, names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import MissingError
from replicator.store.attachments.steps import Algorithm
from replicator.store.attachments.store import Attachments

SLICE = 1000
"""Number of holders, or recorded references, that are checked between two pauses."""


class Records(Protocol):
    """The database's records of references, durable and as of the moment of each call."""

    def holders(self, content_hash: bytes, among: Iterable[str]) -> AbstractSet[str]:
        """Return which of these are recorded holders of this attachment; kept references are left out."""
        ...

    def is_held(self, content_hash: bytes) -> bool:
        """Return True if the attachment has any recorded holder; kept references do not count."""
        ...

    def is_kept(self, holder: str) -> bool:
        """Return True if the holder is recorded as kept under its S-name."""
        ...

    def holdings(self, after: Holding | None, limit: int) -> Sequence[Holding]:
        """Return the next references after this one, by hash and then in any stable order; none at the end."""
        ...


class SweepFindingKind(StrEnum):
    """The kind of a finding."""

    DEAD = "an unfinished removal"
    UNHELD = "an attachment without holders"
    STRAY_HOLDER = "a holder that the database does not record"
    STRAY_BUILD = "a new attachment that the database does not record"
    STRAY_REPLACEMENT = "an unfinished replacement"
    OLD_OWNER = "an earlier owner with nothing left"
    NO_HOLDER = "a recorded reference without its holder"
    NO_ATTACHMENT = "a recorded reference to a missing attachment"
    NO_CONTENT = "a recorded reference to an attachment without content"


class SweepFinding(NamedTuple):
    """A finding. `mended` is False if the caller must fetch a missing attachment or content from another node."""

    kind: SweepFindingKind
    place: str
    mended: bool
    holding: Holding | None = None


class SweepSlice(NamedTuple):
    """A slice of a sweep: the number of attachments, holders or recorded references checked, and the findings.

    `attachments`, with `size_bytes` in total, are recorded and present; over all slices each counts once.
    """

    size: int
    found: list[SweepFinding]
    attachments: int = 0
    size_bytes: int = 0


def sweep(store: Attachments, records: Records, *, repair: bool) -> Iterator[SweepSlice]:
    """Check everything; each step does a bounded amount of work. Without `repair` nothing is changed.

    Raises OSError, after which the caller must begin again.
    """
    yield from _Sweep(store, records, repair=repair).run()


class _Sweep:
    def __init__(self, store: Attachments, records: Records, *, repair: bool) -> None:
        self._store, self._records, self._repair = store, records, repair
        self._own = self._own_owners()
        self._used: set[str] = set()  # this node's owners that occur in some name
        self._counted: bytes | None = None  # hash of the last shared attachment that was counted

    def run(self) -> Iterator[SweepSlice]:
        for place in self._places():
            if place is None:
                yield SweepSlice(0, [])
                continue
            leaf = place.rpartition("/")[2]
            content_hash = self._store.algorithms.hash_of(place)
            if content_hash is not None:
                yield from self._look_at_shared(place, content_hash)
            elif self._is_own(leaf) and place == names.s_name(leaf):
                yield SweepSlice(1, list(self._look_at_built(place, leaf)))
        yield from self._look_at_records()
        yield SweepSlice(0, list(self._look_at_owners()))

    # ---- what is in the directory

    def _places(self) -> Iterator[str | None]:
        """Yield all S-names and H-names; None between directories, most of which may be empty."""
        for first in self._levels(""):
            for second in self._levels(first):
                yield None
                yield from (f"{second}/{leaf}" for leaf in self._listed(second))

    def _look_at_shared(self, place: str, content_hash: bytes) -> Iterator[SweepSlice]:
        leaves = self._listed(place)
        found = list(self._look_at_replacements(place, leaves))
        if names.HOLDERS not in leaves:
            yield SweepSlice(1, [*found, *self._look_at_unheld(place)])
            return
        yield SweepSlice(1, found)
        is_held = False
        for some in _batches(self._iterated(names.holders(place))):
            strays = self._stray_holders(some, content_hash)
            is_held = is_held or len(strays) < len(some)
            gone = [
                self._mended(SweepFindingKind.STRAY_HOLDER, place, linking.unlink(place, stray)) for stray in strays
            ]
            yield SweepSlice(len(some), gone)
        if not is_held and not self._records.is_held(content_hash):  # otherwise its holder file is made again
            yield SweepSlice(0, list(self._look_at_unheld(place)))

    def _look_at_unheld(self, place: str) -> Iterator[SweepFinding]:
        """Look again, since another process may have linked it or continued its removal; then remove it."""
        try:
            leaves = frozenset(self._store.files.names(place))
        except MissingError:
            return
        if names.HOLDERS not in leaves:
            yield self._mended(SweepFindingKind.DEAD, place, linking.clear(place))
        elif not self._listed(names.holders(place)):
            yield self._mended(SweepFindingKind.UNHELD, place, linking.remove_unheld(place))

    def _stray_holders(self, listed: Iterable[str], content_hash: bytes) -> list[str]:
        """Return the stray holders. The order of the checks matters: see the module's docstring."""
        own = {holder for holder in listed if self._is_own(holder)}
        strays = own - self._store.in_flight()
        return sorted(strays - self._records.holders(content_hash, strays)) if strays else []

    def _look_at_built(self, place: str, holder: str) -> Iterator[SweepFinding]:
        leaves = self._listed(place)
        yield from self._look_at_replacements(place, leaves)
        if holder not in self._store.in_flight() and not self._records.is_kept(holder):
            yield self._mended(SweepFindingKind.STRAY_BUILD, place, linking.drop(place))

    def _look_at_replacements(self, place: str, leaves: Iterable[str]) -> Iterator[SweepFinding]:
        """Remove unfinished replacements. A replacement's name is in flight until its file is gone."""
        listed = {leaf: leaf.removeprefix(names.NEW_PREFIX) for leaf in leaves if leaf.startswith(names.NEW_PREFIX)}
        in_flight = self._store.in_flight() if listed else frozenset()
        for leaf, name in sorted(listed.items()):
            if self._is_own(name) and name not in in_flight:
                if self._repair:
                    self._store.files.remove_file(f"{place}/{leaf}")
                yield SweepFinding(SweepFindingKind.STRAY_REPLACEMENT, place, self._repair)

    # ---- what is recorded

    def _look_at_records(self) -> Iterator[SweepSlice]:
        last: Holding | None = None
        while some := self._records.holdings(last, SLICE):
            last = some[-1]
            self._used.update(filter(None, (names.owner_of(holding.holder) for holding in some)))
            found = [found for holding in some if (found := self._look_at_holding(holding))]
            sizes = [size for holding in some if (size := self._size_if_new(holding)) is not None]
            yield SweepSlice(len(some), found, len(sizes), sum(sizes))

    def _size_if_new(self, holding: Holding) -> int | None:
        """Return the size of the content referenced; None: it is missing, or was counted for another reference."""
        if not holding.kept and holding.hash == self._counted:
            return None
        try:
            size_bytes = self._store.size(holding)
        except MissingError:
            return None
        if not holding.kept:
            self._counted = holding.hash
        return size_bytes

    def _look_at_holding(self, holding: Holding) -> SweepFinding | None:
        """Check a recorded reference. A missing file counts only if the reference is still recorded then.

        The owner may have released it meanwhile.
        """
        place = self._store.place(holding)
        kind = self._what_lacks(holding, place)
        if kind is None or not self._is_recorded(holding):
            return None
        if kind is SweepFindingKind.NO_CONTENT:
            return SweepFinding(kind, place, mended=False, holding=holding)
        if self._repair and self._store.relink(holding):
            return SweepFinding(kind, place, mended=True, holding=holding)
        is_there = names.HOLDERS in self._listed(place)
        if not self._is_recorded(holding):
            return None
        return SweepFinding(kind if is_there else SweepFindingKind.NO_ATTACHMENT, place, mended=False, holding=holding)

    def _what_lacks(self, holding: Holding, place: str) -> SweepFindingKind | None:
        try:
            self._store.files.size(f"{names.holders(place)}/{holding.holder}")
        except MissingError:
            return SweepFindingKind.NO_HOLDER
        return SweepFindingKind.NO_CONTENT if linking.content_in(self._listed(place)) is None else None

    def _is_recorded(self, holding: Holding) -> bool:
        if holding.kept:
            return self._records.is_kept(holding.holder)
        return bool(self._records.holders(holding.hash, [holding.holder]))

    # ---- owners

    def _own_owners(self) -> frozenset[str]:
        known = map(names.parse_owner_file, self._listed(names.OWNERS))
        return frozenset(pair[1] for pair in known if pair is not None and pair[0] == self._store.sid)

    def _is_own(self, holder: str) -> bool:
        owner = names.owner_of(holder)
        if owner not in self._own:
            return False
        self._used.add(owner)
        return True

    def _look_at_owners(self) -> Iterator[SweepFinding]:
        """Remove past owners that no name uses; they make nothing new.

        An owner whose last name this sweep has removed goes in the next sweep.
        """
        for owner in sorted(self._own - self._used - {self._store.owner}):
            name = names.owner_file(self._store.sid, owner)
            if self._repair:
                self._store.files.remove_file(name)
            yield SweepFinding(SweepFindingKind.OLD_OWNER, name, self._repair)

    # ---- access

    def _mended(self, kind: SweepFindingKind, place: str, mend: Algorithm[None]) -> SweepFinding:
        if self._repair:
            self._store.perform(mend)
        return SweepFinding(kind, place, self._repair)

    def _levels(self, above: str) -> list[str]:
        leaves = sorted(filter(names.LEVEL.fullmatch, self._listed(above)))
        return [f"{above}/{leaf}" if above else leaf for leaf in leaves]

    def _listed(self, name: str) -> frozenset[str]:
        return frozenset(self._iterated(name))

    def _iterated(self, name: str) -> Iterator[str]:
        try:
            yield from self._store.files.names(name)
        except MissingError:
            return


def _batches(items: Iterator[str]) -> Iterator[list[str]]:
    yield from iter(lambda: list(islice(items, SLICE)), [])
