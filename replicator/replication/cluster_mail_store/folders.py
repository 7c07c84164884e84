"""Operations of the mail store on folders: finding, making and renaming them, their annotations and subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError
from replicator.mail.annotations import check_annotation_name
from replicator.mail.folder_watch import FolderSubscription
from replicator.mail.mailstore import INBOX, Folder, FolderStatus, check_folder_name
from replicator.replication.cluster_mail_store.folder_cache import FolderCache
from replicator.replication.coordinator import Coordinator
from replicator.replication.writes.requests import AnnotateRequest, CreateRequest, RenameRequest, SubscribeRequest
from replicator.runtime.environment import Environment
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows import recent
from replicator.store.store import Store
from resync.entry import NOWHERE, tree_id
from resync.node_annotations import OWN


class FolderOperations:
    """Operations of a mail store on users' folders, by names; reads from this node."""

    def __init__(self, store: Store, coordinator: Coordinator, environment: Environment) -> None:
        self._store = store
        self._coordinator = coordinator
        self._environment = environment
        self._folders = FolderCache(store.origin)
        store.listeners.append(self._folders.note)

    async def folders(self, user: str) -> Sequence[Folder]:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        return await self._store.read(partial(queries.ordered_folders, user=user))

    async def folder(self, user: str, name: str) -> Folder:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        found = await self._find_folder(user, name)
        if found is None and name == INBOX:
            return await self._create(user, INBOX)
        if found is None:
            raise FolderNotFoundError(f"there is no folder {name!r}")
        return found

    async def _find_folder(self, user: str, name: str) -> Folder | None:
        """Return the folder as this node shows it now."""
        known = self._folders.get(user, name)
        if known is not None:
            return known
        before = self._folders.changes
        record = await self._store.read(lambda reader: queries.folder(reader, user, name))
        if record is None:
            return None
        folder = record.folder_of(user)
        self._folders.remember(folder, before)
        return folder

    async def subscriptions(self, user: str) -> Sequence[str]:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        return await self._store.read(lambda reader: sorted(queries.subscriptions(reader, user)))

    async def annotations(self, user: str, folder: Folder | None) -> Mapping[str, bytes]:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        home = NOWHERE if folder is None else folder.mailbox_id
        return await self._store.read(partial(queries.annotations_of, user=user, mailbox_id=home))

    async def annotated(self, user: str, name: str) -> Mapping[bytes, bytes]:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        return await self._store.read(partial(queries.annotated, user=user, name=name))

    async def annotate(self, user: str, folder: Folder | None, values: Mapping[str, bytes | None]) -> None:
        """See `MailStore`."""
        for name in values:
            check_annotation_name(name)
            if name.startswith(OWN):
                raise InvalidNameError(f"annotations below {OWN} belong to the nodes; use another name")
        await self._coordinator.readiness.wait(tree_of(user))
        home = NOWHERE if folder is None else folder.mailbox_id
        await self._coordinator.submit(AnnotateRequest(user, home, tuple(values.items())))

    async def create_folder(self, user: str, name: str, use: str | None = None) -> Folder:
        """See `MailStore`."""
        check_folder_name(name)
        if name == INBOX:
            raise FolderExistsError("INBOX exists for every user")
        await self._coordinator.readiness.wait(tree_of(user))
        return await self._create(user, name, use)

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        """See `MailStore`."""
        check_folder_name(new)
        if new == INBOX:
            raise FolderExistsError("INBOX exists for every user")
        folder = await self.folder(user, old)
        new_id = self._environment.new_guid
        await self._coordinator.submit(RenameRequest(user, folder.mailbox_id, new, new_id))

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """See `MailStore`."""
        check_folder_name(name)
        await self._coordinator.readiness.wait(tree_of(user))
        await self._coordinator.submit(SubscribeRequest(user, name, subscribed))

    async def catch_up(self, user: str, name: str | None = None) -> bool:
        """See `MailStore`."""
        tree = tree_of(user)
        await self._coordinator.readiness.wait(tree)
        catch_up, before = self._coordinator.read_your_writes.catch_up, await self._mailbox(user, name)
        is_here = await catch_up(tree, *before)
        if (now := await self._mailbox(user, name)) != before:
            is_here = await catch_up(*now) and is_here
        return is_here

    async def _mailbox(self, user: str, name: str | None) -> list[MailboxKey]:
        """Return the mailbox of the folder of this name, if there is one."""
        found = None if name is None else await self._find_folder(user, name)
        return [] if found is None else [MailboxKey.of(found)]

    async def watch_folders(self, user: str) -> FolderSubscription:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        return await self._store.folder_views.watch(user)

    async def status(self, folder: Folder) -> FolderStatus:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        chain = await self._store.read(lambda reader: chains.load_known(reader, folder.mailbox_id))
        if chain is None:
            return FolderStatus(folder, 0, 0, 1, 0, 0)
        return FolderStatus(folder, chain.messages, chain.unseen, chain.uidnext, chain.highestmodseq, chain.size_bytes)

    async def count_recent(self, folder: Folder) -> int:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(lambda reader: recent.count(reader, folder.mailbox_id))

    async def _create(self, user: str, name: str, use: str | None = None) -> Folder:
        mailbox_id, new_id = self._environment.new_guid(), self._environment.new_guid
        await self._coordinator.submit(CreateRequest(user, name, mailbox_id, new_id, use))
        found = await self._find_folder(user, name)
        if found is None:
            raise FolderNotFoundError(f"another client deleted the folder {name!r} as soon as it was created")
        return found


def tree_of(user: str) -> MailboxKey:
    """Return the key of the user's tree of folders."""
    return MailboxKey(user, tree_id(user), 0)
