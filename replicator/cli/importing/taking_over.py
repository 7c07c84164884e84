"""Changes at the source since an earlier import, made here too: flags, and expunges.

A mail that was changed here since then stays as it is: the node compares its flags with those that both sides had. From
then on the mail is only the node's, whatever happens at the source. Mail that has another UID here is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from protocol.values import UidSet
from replicator.cli.api.client import FoundFolder, NodeClient, TakenChange
from replicator.cli.importing.memory import Flags, FolderMemory
from replicator.cli.importing.results import FolderResult

CHANGED_AT_ONCE = 1000
"""Mails of one request, which the node can change within its time limit."""


class TakingOver:
    """Brings the changes of one folder; `memory` follows them, and `result` counts them."""

    def __init__(
        self, client: NodeClient, user: str, here: FoundFolder, memory: FolderMemory, result: FolderResult
    ) -> None:
        self._result = result
        self._client = client
        self._user = user
        self._here = here
        self._memory = memory

    def run(self, flags: Mapping[int, Flags], uids: UidSet) -> None:
        """Make the mail as it is at the source, where `flags` have changed, and there are `uids`.

        Raises UnreachableError, RefusedError.
        """
        for change in self._changes(flags, uids):
            changed = self._client.take_over(self._user, self._here.name, self._here.uidvalidity, change)
            for uid in change.uids:
                if uid in changed and change.flags is not None:
                    self._memory.flags[uid] = change.flags
                else:
                    del self._memory.flags[uid]
            self._result.stayed += len(change.uids) - len(changed)
            if change.flags is None:
                self._result.expunged += len(changed)
            else:
                self._result.reflagged += len(changed)

    def _changes(self, flags: Mapping[int, Flags], uids: UidSet) -> Iterator[TakenChange]:
        """Yield what is to be changed, mails of the same change together."""
        together: dict[tuple[Flags, Flags | None], list[int]] = {}
        there = {*uids}
        for uid, was in self._memory.flags.items():
            now = flags.get(uid, was) if uid in there else None
            if now != was:
                together.setdefault((was, now), []).append(uid)
        for (was, now), changed in together.items():
            rest = iter(sorted(changed))
            while some := list(islice(rest, CHANGED_AT_ONCE)):
                yield TakenChange(UidSet.of(some), was, now)
