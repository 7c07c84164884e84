"""Changes at the source since an earlier import, made here too: flags and, if that is asked for, expunges.

A mail that was changed here since then stays as it is: the node compares its flags with those that both sides had. From
then on the mail is only the node's, whatever happens at the source. Mail that has another UID here is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from http import HTTPStatus
from itertools import islice

from protocol.values import UidSet
from replicator.cli.api.client import FoundFolder, NodeClient, TakenChange
from replicator.cli.api.connection import RefusedError
from replicator.cli.importing.memory import Flags, FolderMemory
from replicator.cli.importing.results import Failure, FolderResult

CHANGED_AT_ONCE = 1000
"""Mails of one request, which the node can change within its time limit."""
MESSAGE_CHARS = 100  # of the UIDs of a failure


class TakingOver:
    """Brings the changes of one folder; `memory` follows them, `result` counts them, and `failures` has the others."""

    def __init__(
        self,
        client: NodeClient,
        user: str,
        here: FoundFolder,
        *,
        memory: FolderMemory,
        result: FolderResult,
        failures: list[Failure],
    ) -> None:
        self._client = client
        self._user = user
        self._here = here
        self._memory = memory
        self._result = result
        self._failures = failures

    def take_flags(self, flags: Mapping[int, Flags], uids: UidSet) -> None:
        """Give mail of `uids` the `flags` that it has at the source; what the node refuses is among the failures.

        Raises UnreachableError, RefusedError.
        """
        there = {*uids}
        changed = {
            uid: flags[uid] for uid, was in self._memory.flags.items() if uid in there and flags.get(uid, was) != was
        }
        for change in self._changes(changed):
            try:
                taken = self._take(change)
            except RefusedError as error:
                if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
                self._failures.append(Failure(f"{self._here.name}, UIDs {change.uids}"[:MESSAGE_CHARS], error.detail))
                continue
            self._memory.flags.update({uid: changed[uid] for uid in taken})
            self._result.reflagged += len(taken)

    def expunge(self, uids: Collection[int]) -> Collection[int]:
        """Expunge mail that is gone at the source; return what is no mail of the source any more.

        Raises UnreachableError, RefusedError.
        """
        done = set[int]()
        for change in self._changes(dict.fromkeys(uids)):
            taken = self._take(change)
            self._memory.expunged.update(taken)
            self._result.expunged += len(taken)
            done.update(change.uids)
            for uid in taken:
                self._memory.flags.pop(uid, None)
        return done

    def _take(self, change: TakenChange) -> UidSet:
        """Make a change; return where it was made. Other mail is only the node's from now on."""
        taken = self._client.take_over(self._user, self._here.name, self._here.uidvalidity, change)
        self._result.stayed += len(change.uids) - len(taken)
        for uid in {*change.uids} - {*taken}:
            del self._memory.flags[uid]
        return taken

    def _changes(self, wanted: Mapping[int, Flags | None]) -> Iterator[TakenChange]:
        """Yield changes from the flags that both sides had to those that are wanted, of many mails at once."""
        together: dict[tuple[Flags, Flags | None], list[int]] = {}
        for uid, now in wanted.items():
            together.setdefault((self._memory.flags[uid], now), []).append(uid)
        for (was, now), changed in together.items():
            rest = iter(sorted(changed))
            while some := list(islice(rest, CHANGED_AT_ONCE)):
                yield TakenChange(UidSet.of(some), was, now)
