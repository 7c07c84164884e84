"""Finds the owners of damaged mail: the messages that show the damaged bodies that a check or a scrub found.

No index leads from a body to its messages, so all rows are scanned, once, at the end, and only if there is damage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from replicator.store.db import queries
from replicator.store.repair import table_check
from replicator.store.repair.table_check import Showing, TableSlice
from replicator.store.store import Reader
from replicator.tasks import Finding, ShownAt

BODY_KINDS = frozenset({"content", "attachment"})
NAMED_MAX = 5  # messages listed per finding

Pace = Callable[[int], Awaitable[None]]
"""A function that rests after reading this many rows, according to the task's rate."""


@dataclass(slots=True)
class _Shown:
    """The messages that show a body: the first ones, and the number of others."""

    first: list[ShownAt] = field(default_factory=list)
    more: int = 0


async def named(findings: list[Finding], reader: Reader, pace: Pace) -> list[Finding]:
    """Return the findings, those about bodies with the messages that show them. Raises DatabaseFailedError."""
    wanted = {bytes.fromhex(one.guid) for one in findings if one.kind in BODY_KINDS and one.guid is not None}
    shown = await _shown(wanted, reader, pace) if wanted else {}
    return [_named(one, shown) if one.kind in BODY_KINDS and one.guid is not None else one for one in findings]


async def _shown(bodies: Container[bytes], reader: Reader, pace: Pace) -> dict[str, _Shown]:
    """Return the messages that show these bodies, by the bodies' hashes in hexadecimal."""
    shown: dict[str, _Shown] = {}
    at: table_check.Key | None = table_check.FIRST
    while at is not None:
        part: TableSlice[table_check.Key, Showing] = await reader.read(
            partial(table_check.showing, after=at, bodies=bodies)
        )
        for mailbox, user, uid, content_hash in part.found:
            of_body = shown.setdefault(content_hash.hex(), _Shown())
            if len(of_body.first) == NAMED_MAX:
                of_body.more += 1
                continue
            folder = await reader.read(partial(queries.folder_name, mailbox_id=mailbox))
            of_body.first.append(ShownAt(user, folder or mailbox.hex(), uid))
        await pace(part.size)
        at = part.after
    return shown


def _named(finding: Finding, shown: Mapping[str, _Shown]) -> Finding:
    found = shown.get(finding.guid or "")
    if found is None:
        return replace(finding, what=f"{finding.what}; no message refers to it") if finding.uid is None else finding
    if finding.uid is None:
        first, *also = found.first
        return replace(finding, user=first.user, folder=first.folder, uid=first.uid, also=tuple(also), more=found.more)
    own = finding.user, finding.folder, finding.uid
    also = [one for one in found.first if (one.user, one.folder, one.uid) != own]
    return replace(finding, also=tuple(also), more=found.more)
