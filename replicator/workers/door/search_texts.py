"""Search texts at a door: it reads their file itself, which the core alone writes, deletes and begins anew."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import trio

from replicator.errors import MailError
from replicator.mail.mailstore import SearchTextSlice
from replicator.runtime.environment import ThreadRunner
from replicator.store.search_texts.form import SearchFileDamagedError
from replicator.store.search_texts.reader import SearchTextReader
from replicator.workers.channel import Channel

LOOK_EVERY_S = 5.0
"""Seconds between two looks whether the file has been deleted, whose room on the disk is free once it is closed."""

log = logging.getLogger(__name__)


class DoorSearchTexts:
    """The search texts, as a door's process has them. `run` has to run. Belongs to the event loop."""

    def __init__(self, channel: Channel, reader: SearchTextReader, run_in_thread: ThreadRunner) -> None:
        self._channel = channel
        self._reader = reader
        self._run_in_thread = run_in_thread
        self._turn = trio.Lock()

    async def of(self, hashes: Sequence[bytes]) -> SearchTextSlice:
        """See `MailStore.search_texts`. A file that fails has none; one that is damaged the core is to check."""
        async with self._turn:
            try:
                return await self._run_in_thread(partial(self._reader.texts, hashes))
            except SearchFileDamagedError:
                self._channel.tell("check_search_texts", hashes)
            except MailError as error:  # the core meets it, too, and says so
                log.debug("cannot read search texts now: %s", error)
        return SearchTextSlice({}, len(hashes))

    async def run(self) -> None:
        """Close the file soon after it has been deleted, until cancelled; then close it."""
        try:
            while True:
                await trio.sleep(LOOK_EVERY_S)
                async with self._turn:
                    await self._run_in_thread(self._reader.close_if_deleted)
        finally:
            with trio.CancelScope(shield=True):
                async with self._turn:
                    await self._run_in_thread(self._reader.close)
