"""A folder's numbers, which it takes over from the source so that clients go on with what they have.

A folder that is new here gets the source's UIDVALIDITY and a HIGHESTMODSEQ above all that clients know, before its mail
comes, and the source's UIDNEXT after that. It gets a UIDVALIDITY of its own again where a UID might name two mails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from protocol.values import UidSet
from replicator.cli.api.client import FoundFolder, NodeClient
from replicator.cli.api.connection import RefusedError
from replicator.cli.sources import SourceFolder

MODSEQ_BOUND = 2**32
"""A HIGHESTMODSEQ above that of any folder of a server that does not tell it; a node keeps them up to 2^39."""


class Numbers:
    """The numbers of one folder. `here`: it, with its UIDVALIDITY; `note` is called with what people are told."""

    def __init__(
        self, client: NodeClient, user: str, here: FoundFolder, folder: SourceFolder, note: Callable[[str], None]
    ) -> None:
        self.here = here
        self.are_kept = False
        self._client = client
        self._user = user
        self._folder = folder
        self._note = note

    def keep(self, *, is_first: bool) -> None:
        """Make the folder's UIDVALIDITY and HIGHESTMODSEQ those of the source, if it has no mail of its own."""
        wanted = self._folder.uidvalidity
        if wanted is None:
            return
        if self.here.uidvalidity != wanted and (self.here.messages or not is_first):
            if is_first:
                self._note("has had mail here, so what comes gets new UIDs")
            return
        try:
            if self.here.uidvalidity != wanted:
                uidvalidity = self._client.keep_uidvalidity(self._user, self.here.name, wanted)
                self.here = replace(self.here, uidvalidity=uidvalidity)
        except RefusedError as error:
            _raise_if_it_passes(error)
            self._note(f"gets new UIDs: {error.detail}")
            return
        self._raise_modseq()
        self.are_kept = True

    def raise_uidnext(self, uids: UidSet | None) -> None:
        """Raise UIDNEXT above all UIDs of the source, among them `uids`: more mail may have come meanwhile."""
        if not self.are_kept or self._folder.uidnext is None:
            return
        try:
            self._client.raise_numbers(self._user, self.here.name, self.uidnext_there(uids), 0)
        except RefusedError as error:
            _raise_if_it_passes(error)
            self.give_up(error.detail)

    def uidnext_there(self, uids: UidSet | None) -> int:
        """Return a number above all UIDs of the source, among them `uids`."""
        return max(self._folder.uidnext or 1, uids.ranges[-1][1] + 1 if uids else 1)

    def give_up(self, why: str) -> None:
        """Give the folder a UIDVALIDITY of its own, since a UID might name different mails here and at the source."""
        uidvalidity = self._client.keep_uidvalidity(self._user, self.here.name, None)
        self.here = replace(self.here, uidvalidity=uidvalidity)
        self.are_kept = False
        self._note(f"mail programs load it anew, because {why}")

    def _raise_modseq(self) -> None:
        """Raise HIGHESTMODSEQ to that of the source, before anything changes here that its clients are to hear of."""
        try:
            modseq = self._folder.highestmodseq or MODSEQ_BOUND
            self._client.raise_numbers(self._user, self.here.name, 1, modseq)
        except RefusedError as error:
            _raise_if_it_passes(error)
            # So high that none here will ever reach it: a client that knows it is told everything, each time.
            self._note(f"HIGHESTMODSEQ is not kept: {error.detail}")


def _raise_if_it_passes(error: RefusedError) -> None:
    """Raise an error of the node, after which the same may succeed."""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
