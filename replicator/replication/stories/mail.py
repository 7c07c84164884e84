"""The story of one mail: where it is and was, what happened to it, and which mails are like it.

A node tells what its own tables and its own log have. Each search has a limit, and so has the whole story's time; the
story says how far it came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice

import trio

from protocol.values import UID_MAX
from replicator.mail.mailstore import MessageIdReader
from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.stories.history import find_folder, walk
from replicator.replication.stories.mail_lives import LogTold, MailRows, rows_of, told_by_log, told_by_tree
from replicator.replication.stories.message_ids import MessageIds
from replicator.store.db import queries
from replicator.store.db.queries import Connection
from replicator.store.log.stories import story_rows
from replicator.store.log.stories.chain_walk import ChainWalk
from replicator.store.log.stories.story_rows import Holding, KnownFolder
from replicator.store.store import Reader
from replicator.stories import Arrivals, AskedMail, LookedAt, MailLife, MailStory, Sameness
from resync.entry import Entry, tree_id
from resync.story.lives import FolderEvent
from resync.story.parts import about, about_folders, added_by, adding

ENTRIES_MAX = 50_000  # of logs, for one story: three seconds of a thread
TREE_ENTRIES_MAX = 5_000
MESSAGES_MAX = 500_000  # rows that are looked at for the same body
HEADERS_MAX = 20_000  # looked at for the same Message-ID
HEADERS_AT_ONCE = 250
KEPT_MAX = 1_000  # expunged messages of a folder whose headers are looked at
KEPT_IN_ALL_MAX = 10_000  # of all folders; besides `HEADERS_MAX`, so that a large folder leaves room for what is gone
LIVES_MAX = 20
ALIKE_MAX = 50  # messages of one folder with the same body


class MailStoryTeller:
    """Tells one story. `reader` is held for it; `how` reads Message-IDs."""

    def __init__(
        self,
        reader: Reader,
        coordinator: Coordinator,
        how: MessageIdReader,
        *,
        user: str,
        mailbox: str,
        clock_ms: int,
    ) -> None:
        self._reader = reader
        self._coordinator = coordinator
        self._message_ids = MessageIds(reader, how)
        self._user = user
        self._mailbox = mailbox
        self._clock_ms = clock_ms
        self._until = trio.current_time() + timing.STORY_READ_S
        self._folders: dict[bytes, KnownFolder] = {}
        self._of_this_name: list[bytes] = []
        self._shown: dict[bytes, int] = {}  # numbers of messages by mailbox id
        self._kept: dict[bytes, int] = {}  # those of expunged ones
        self._found: dict[tuple[bytes, bytes], Sameness] = {}  # mailbox id and GUID
        self._hashes: dict[bytes, bytes] = {}  # content hashes by GUID
        self._names: dict[bytes, str] = {}  # Message-IDs by content hash
        self._entries = self._messages = self._messages_left = 0
        self._shown_headers = self._kept_headers = self._headers_left = 0
        self._is_cut = False

    async def tell(self, asked: AskedMail) -> MailStory:
        """Return the story. Raises FolderNotFoundError, DatabaseFailedError, DatabaseDamagedError."""
        await find_folder(self._reader, self._coordinator.sid, self._user, self._mailbox)
        folders = await self._reader.read(partial(story_rows.folders_of, user=self._user))
        folders.sort(key=lambda folder: folder.name != self._mailbox)  # those of this name first
        self._folders = {folder.mailbox_id: folder for folder in folders}
        self._of_this_name = [folder.mailbox_id for folder in folders if folder.name == self._mailbox]
        self._shown = await self._reader.read(partial(_message_counts, user=self._user))
        self._kept = await self._reader.read(partial(story_rows.kept_counts, user=self._user))
        await self._find_asked(asked)
        await self._find_alike(asked.message_id)
        lives, arrivals = await self._lives()
        return MailStory(
            node=self._coordinator.sid,
            clock_ms=self._clock_ms,
            user=self._user,
            mailbox=self._mailbox,
            peers=self._peers(),
            lives=tuple(lives),
            lives_left=max(0, len(self._found) - LIVES_MAX),
            arrivals=tuple(arrivals),
            folders=tuple(await self._folder_events()) if lives else (),
            looked_at=LookedAt(
                entries=self._entries,
                entries_left=self._is_cut,
                messages=self._messages,
                messages_left=self._messages_left,
                headers=self._shown_headers + self._kept_headers,
                headers_left=self._headers_left,
                headers_unread=self._message_ids.unread,
            ),
        )

    def _peers(self) -> tuple[str, ...]:
        coordinator = self._coordinator
        nodes = {*coordinator.connections.peers, *coordinator.mastership.table.component}
        return tuple(sorted(nodes - {coordinator.sid}))

    @property
    def _is_late(self) -> bool:
        return trio.current_time() >= self._until

    def _note(self, holdings: Iterable[Holding], same: Sameness) -> None:
        for one in holdings:
            self._found.setdefault((one.mailbox_id, one.guid), same)
            self._hashes[one.guid] = one.content_hash

    # ---- which mails

    async def _find_asked(self, asked: AskedMail) -> None:
        if asked.guid is not None:
            found = await self._reader.read(
                partial(story_rows.with_guid, mailbox_ids=self._of_this_name, guid=asked.guid)
            )
            self._note(found, "asked")
            if not found:
                await self._find_in_logs(lambda guid, _uid: guid == asked.guid)
        elif asked.uid is not None:
            await self._find_uid(asked.uid)
        elif asked.message_id is not None:
            await self._find_message_ids({asked.message_id}, self._of_this_name, "asked")

    async def _find_uid(self, uid: int) -> None:
        for mailbox_id in self._of_this_name:
            found = await self._reader.read(partial(story_rows.at_uid, mailbox_id=mailbox_id, uid=uid))
            self._note(found, "asked")
            if found:
                return
        await self._find_in_logs(lambda _guid, at: at == uid)

    async def _find_in_logs(self, is_wanted: Callable[[bytes, int], bool]) -> None:
        """Find mails that these folders show no more, and of which only the log tells."""
        for mailbox_id in self._of_this_name:
            if self._is_late:
                self._is_cut = True
                return
            walked = await self._walk(mailbox_id, partial(adding, is_wanted=is_wanted))
            for one in walked.found:
                self._note((Holding(mailbox_id, guid, of) for guid, of in added_by(one.entry).items()), "asked")

    async def _find_alike(self, message_id: str | None) -> None:
        """Find copies of the mails found so far, in all folders: by GUID, by body, and by Message-ID."""
        asked = list(dict.fromkeys(guid for _, guid in self._found))[:LIVES_MAX]
        for guid in asked:
            others = partial(story_rows.with_guid, mailbox_ids=list(self._folders), guid=guid)
            self._note(await self._reader.read(others), "guid")
        hashes = [self._hashes[guid] for guid in asked]
        await self._find_bodies(hashes)
        names = set((await self._names_of(hashes)).values())
        if message_id is not None:
            names.add(message_id)
        if names:
            looked_at = frozenset[bytes]() if message_id is None else frozenset(self._of_this_name)
            elsewhere = [one for one in self._folders if one not in looked_at]
            await self._find_message_ids(names, elsewhere, "message_id")

    async def _find_bodies(self, hashes: Sequence[bytes]) -> None:
        for mailbox_id in self._folders if hashes else ():
            count = self._shown.get(mailbox_id, 0)
            if not count and mailbox_id not in self._kept:
                continue
            if self._messages + count > MESSAGES_MAX or self._is_late:
                self._messages_left += count
                continue
            self._messages += count
            for content_hash in dict.fromkeys(hashes):
                query = partial(story_rows.with_body, mailbox_id=mailbox_id, content_hash=content_hash, most=ALIKE_MAX)
                self._note(await self._reader.read(query), "body")

    async def _find_message_ids(self, names: Collection[str], mailbox_ids: Iterable[bytes], same: Sameness) -> None:
        for mailbox_id in mailbox_ids:
            if shown := self._shown.get(mailbox_id, 0):
                self._headers_left += max(0, shown - await self._look_at_shown(mailbox_id, names, same))
            if kept := self._kept.get(mailbox_id, 0):
                self._headers_left += max(0, kept - await self._look_at_kept(mailbox_id, names, same))

    async def _look_at_shown(self, mailbox_id: bytes, names: Collection[str], same: Sameness) -> int:
        """Return how many messages of the folder were looked at: the newest."""
        seen, below = 0, UID_MAX + 1
        while self._shown_headers < HEADERS_MAX and not self._is_late:
            query = partial(story_rows.newest, mailbox_id=mailbox_id, below=below, most=HEADERS_AT_ONCE)
            some = await self._reader.read(query)
            if not some:
                break
            await self._note_named([one for _, one in some], names, same)
            self._shown_headers += len(some)
            seen, below = seen + len(some), some[-1][0]
        return seen

    async def _look_at_kept(self, mailbox_id: bytes, names: Collection[str], same: Sameness) -> int:
        """Return how many expunged messages of the folder were looked at: those that were received last."""
        if self._kept_headers >= KEPT_IN_ALL_MAX or self._is_late:
            return 0
        kept = await self._reader.read(partial(story_rows.newest_kept, mailbox_id=mailbox_id, most=KEPT_MAX))
        for start in range(0, len(kept), HEADERS_AT_ONCE):
            if self._kept_headers >= KEPT_IN_ALL_MAX or self._is_late:
                return start
            some = kept[start : start + HEADERS_AT_ONCE]
            await self._note_named(some, names, same)
            self._kept_headers += len(some)
        return len(kept)

    async def _note_named(self, holdings: Sequence[Holding], names: Collection[str], same: Sameness) -> None:
        found = await self._names_of([one.content_hash for one in holdings])
        self._note((one for one in holdings if found.get(one.content_hash) in names), same)

    async def _names_of(self, hashes: Sequence[bytes]) -> dict[bytes, str]:
        found = await self._message_ids.of(hashes)
        self._names |= found
        return found

    # ---- their lives

    async def _lives(self) -> tuple[list[MailLife], list[Arrivals]]:
        lives: dict[tuple[bytes, bytes], MailLife] = {}
        arrivals: list[Arrivals] = []
        chosen = dict(islice(self._found.items(), LIVES_MAX))
        for mailbox_id in dict.fromkeys(mailbox_id for mailbox_id, _ in chosen):
            guids = [guid for other, guid in chosen if other == mailbox_id]
            rows = await self._reader.read(partial(rows_of, mailbox_id=mailbox_id, guids=guids))
            walked = await self._walk(mailbox_id, partial(about, guids=frozenset(guids)))
            told = await self._reader.read(partial(told_by_log, walked=walked, rows=rows))
            for guid in guids:
                lives[mailbox_id, guid] = self._life(chosen[mailbox_id, guid], rows[guid], told)
            arrivals += told.arrivals
        return [lives[key] for key in chosen], arrivals

    async def _walk(self, chain_id: bytes, keep: Callable[[Entry], Entry]) -> ChainWalk:
        most = max(1, ENTRIES_MAX - self._entries)
        walked = await walk(self._reader, ChainWalk(chain_id, most=most, keep=keep), self._until)
        self._entries += len(walked.found)
        self._is_cut = self._is_cut or walked.is_cut
        return walked

    def _life(self, same: Sameness, rows: MailRows, told: LogTold) -> MailLife:
        folder, one = self._folders[rows.mailbox_id], rows.shown or rows.kept
        content_hash, happened = self._hashes.get(rows.guid) or None, tuple(told.events[rows.guid])
        return MailLife(
            same=same,
            guid=rows.guid.hex(),
            mailbox_id=rows.mailbox_id.hex(),
            folder=folder.name,
            is_deleted=folder.is_deleted,
            shown=rows.shown_mail(),
            kept=rows.kept_mail(int(self._coordinator.config.content.keep_expunged_s * 1000)),
            message_id=None if content_hash is None else self._names.get(content_hash),
            sha256=None if content_hash is None else content_hash.hex(),
            size_bytes=None if one is None else one.size_bytes,
            received_ms=None if one is None else one.received_ms,
            events=happened,
            events_left=told.left[rows.guid],
            unshown=tuple(dict.fromkeys(event.entry for event in happened if event.entry in told.unshown)),
            log_since_ms=told.since_ms,
            is_whole=told.is_whole,
        )

    async def _folder_events(self) -> list[FolderEvent]:
        tree = ChainWalk(tree_id(self._user), most=TREE_ENTRIES_MAX, keep=about_folders)
        walked = await walk(self._reader, tree, self._until)
        mailbox_ids = {mailbox_id for mailbox_id, _ in self._found}
        return await self._reader.read(partial(told_by_tree, walked=walked, mailbox_ids=mailbox_ids))


def _message_counts(connection: Connection, user: str) -> dict[bytes, int]:
    return {chain.id: chain.messages for chain in queries.chains_of(connection, user)}
