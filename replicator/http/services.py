"""Services of the node that the HTTP door uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import trio
from prometheus_client import CollectorRegistry

from replicator.config import ClusterConfig, ContentConfig, LimitsConfig
from replicator.errors import OtherClusterError, UsersUnavailableError
from replicator.http.message import Request
from replicator.http.parameters import no_such_user
from replicator.http.tasks.destinations import Destinations
from replicator.mail.mailstore import CoreMailStore, Folder, MessageIdReader
from replicator.runtime.drain import Drain
from replicator.runtime.environment import ThreadRunner, run_in_thread, wall_clock_ms
from replicator.runtime.metrics import HttpMetrics, RefusalMetrics
from replicator.runtime.sessions import NodeSessions
from replicator.status import CertificateStatus, CheckpointStatus, MailboxStatus, NodeStatus, SearchTextStatus
from replicator.stories import AskedMail, LoggedHistory, MailboxStory, MailStory
from replicator.tasks import TaskName, TaskOptions, TaskStatus
from replicator.tracing.tracer import Tracer
from replicator.users import Account, Login, MailNames, Penalty, Trial, UserNames, folded

T = TypeVar("T")

REST = 10  # times as long as a shared value took to make, until it is made again


class NodeReport(Protocol):
    """The node's report on itself."""

    async def node_status(self) -> NodeStatus:
        """Return the node's present status."""
        ...

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        """Return the mailboxes of one user, or of all, ordered by user and name."""
        ...

    async def has_unsaved(self) -> bool:
        """Return True if any state shown here is in no checkpoint of this node. Reads the heads of all mailboxes."""
        ...

    async def healthy(self) -> Sequence[str]:
        """Return the reasons why mail cannot be read or changed here, one line each; empty if it can."""
        ...


class MasterControl(Protocol):
    """Control over folders' masters."""

    async def master_of(self, folder: Folder) -> str | None:
        """Return the master's SID, as the root has it; None if this node has not needed it yet."""
        ...

    async def move_to(self, folder: Folder, node: str) -> None:
        """Make that node the master, even if the folder is in use elsewhere. Raises UnavailableError."""
        ...


class TaskControl(Protocol):
    """Control over the node's long-running tasks, of which one runs at a time."""

    def start(self, options: TaskOptions) -> TaskStatus | None:
        """Start a task and return its status; None if a task of any kind runs already."""
        ...

    def running(self) -> TaskName | None:
        """Return the running task."""
        ...

    def status(self, name: TaskName) -> TaskStatus | None:
        """Return the status of the running or the last task; None if there was none since the node's start."""
        ...

    async def wait(self, name: TaskName) -> None:
        """Return when no task of this kind runs."""
        ...

    def cancel(self, name: TaskName) -> None:
        """Stop the task soon."""
        ...


class CheckpointControl(Protocol):
    """The node's checkpoints."""

    async def checkpoint_now(self) -> CheckpointStatus:
        """Write all changes and return the new state. If cancelled, the work continues. Raises UnavailableError."""
        ...

    def checkpoint_status(self) -> CheckpointStatus:
        """Return the present state."""
        ...


class StoryTeller(Protocol):
    """The history of mailboxes and mails, as this node knows it."""

    async def history(self, user: str, mailbox: str | None, *, last: int, since_ms: int) -> LoggedHistory:
        """Return the last entries of a folder, or with None of the user's folder tree, none older than `since_ms`.

        Raises FolderNotFoundError, DatabaseFailedError.
        """
        ...

    async def mailbox(self, user: str, name: str) -> MailboxStory:
        """Return what is known of a folder here, and whether other nodes show the same. Raises as `history`."""
        ...

    async def mail(self, user: str, name: str, asked: AskedMail) -> MailStory:
        """Return what is known of a mail of a folder here, and of others like it. Raises as `history`."""
        ...


class SearchTextControl(Protocol):
    """The texts by which SEARCH need not read bodies."""

    @property
    def status(self) -> SearchTextStatus | None:
        """Progress of the search texts; None: there are none now."""
        ...

    def begin_anew(self) -> None:
        """Delete all search texts soon, and make them anew."""
        ...


class UserControl(Protocol):
    """The cluster's user table. Changes raise MailError as those of folders do, and OSError."""

    async def has(self, user: str) -> bool:
        """Return True if the table has a user of this name, as far as the nodes in reach know."""
        ...

    async def names_of(self, user: str) -> Sequence[str]:
        """Return the log-in names that open the mail of exactly this user, as far as the nodes in reach know."""
        ...

    async def add(self, lines: Sequence[bytes], *, replace: bool = False) -> None:
        """Add users by their lines, all or none. Raises UserExistsError, ValueError."""
        ...

    async def set_password(self, user: str, hashed: str) -> None:
        """Replace the hash of the user's password. Raises UserUnknownError, ValueError."""
        ...

    async def set_disabled(self, user: str, *, disabled: bool) -> MailNames:
        """Disable the user, or let the user log in again, and return who else opens the mail.

        Raises UserUnknownError, ValueError.
        """
        ...

    async def rename(self, user: str, name: str) -> str:
        """Give the user another log-in name, and return the user whose mail that opens, as the old one did.

        Raises UserUnknownError, UserExistsError, ValueError.
        """
        ...

    async def delete(self, user: str) -> MailNames:
        """Remove the user, and return whose mail that was, and who else opens it. Raises UserUnknownError."""
        ...


class UserOversight(Protocol):
    """The users as operators see them."""

    def users(self) -> Sequence[str]:
        """Return the names of all users."""
        ...

    def accounts(self) -> Sequence[Account]:
        """Return all users, and what their lines say."""
        ...

    async def account(self, name: str) -> Account | None:
        """Return the user of this name, in whichever cluster, as of now; None: there is none.

        Raises UsersUnavailableError.
        """
        ...

    def names_of(self, user: str) -> Sequence[str]:
        """Return the log-in names that open the mail of exactly this user. Raises UsersUnavailableError."""
        ...

    def name_meant(self, name: str) -> str:
        """Return the first log-in name that opens the mail of exactly the user of this name, or else this name."""
        ...

    async def try_login(self, name: str, password: str, address: str | None = None) -> Trial:
        """Return whether this name and password would let a client in, from an IP address; None: from any.

        Raises UnavailableError.
        """
        ...

    def penalties(self) -> Sequence[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        ...

    def forgive(self, of: str | None) -> int:
        """Forget the failed attempts of a user or an address, or of everybody; return how many penalties end."""
        ...


class UserHomes(Protocol):
    """The users of all clusters of the site."""

    async def verify_anywhere(
        self, name: str, password: str, *, address: str | None = None, patience_s: float = ...
    ) -> Login | None:
        """Return the login of a user of any cluster if the password is right. Raises as `UserDirectory`."""
        ...

    def home_of(self, name: str) -> tuple[str, str] | None:
        """Return the log-in name that this name means, and the user's cluster. Raises UsersUnavailableError."""
        ...


class NodeEnding(Protocol):
    """The end of the node's process, on the road that SIGTERM takes."""

    @property
    def is_managed(self) -> bool:
        """True if a service manager has started the process: it may start the node anew."""
        ...

    def begin(self, why: str) -> None:
        """End the node in order, soon."""
        ...


@dataclass(frozen=True, slots=True)
class MailServers:
    """The clusters of the site, of which this node's is one, and the users of all, for proxies that ask.

    `asking`: questions in work, by the client's network.
    """

    users: UserHomes
    clusters: Sequence[ClusterConfig]
    asking: Counter[str] = field(default_factory=Counter)


class Shared(Generic[T]):
    """A value that is made for several who ask, at most once in a while. Belongs to the event loop."""

    def __init__(self) -> None:
        self._making = trio.Lock()
        self._made: tuple[float, T] | None = None  # and until when it is fresh

    async def get(self, make: Callable[[], Awaitable[T]], fresh_s: float) -> T:
        """Return a value that is made anew by `make` once it is older than `fresh_s`; what `make` raises is passed on.

        What takes long to make is kept for longer, so that making it never takes more than 1/`REST` of the time.
        """
        async with self._making:
            began = trio.current_time()
            if self._made is None or began >= self._made[0]:
                value = await make()
                took_s = trio.current_time() - began
                self._made = began + max(fresh_s, REST * took_s), value
            return self._made[1]


async def _nothing_to_reload() -> Sequence[CertificateStatus]:
    return ()


@dataclass(frozen=True, slots=True)
class HttpServices:
    """Services for handlers. `reload` reads the certificates again and returns them, or raises ConfigError.

    `search_texts` is None if the node is to keep none, `servers` if no cluster is configured, `user_table` if users
    come from a file. `registry` holds the node's own metrics, never the library's global ones. `overviews` holds the
    last overview of the node, as `page.events` tells it. `peers`: the other nodes that are configured now.
    `keep_expunged_s`: how long the node keeps expunged mail. `ending` is None if the node has no process of its own.
    """

    sid: str
    mail: CoreMailStore
    status: NodeReport
    users: UserNames
    registry: CollectorRegistry
    masters: MasterControl
    checkpoints: CheckpointControl
    tasks: TaskControl
    stories: StoryTeller
    oversight: UserOversight
    message_ids: MessageIdReader
    tracer: Tracer
    search_texts: SearchTextControl | None = None
    sessions: NodeSessions = field(default_factory=NodeSessions)
    drain: Drain = field(default_factory=Drain)
    ending: NodeEnding | None = None
    metrics: HttpMetrics = field(default_factory=HttpMetrics)
    clock_ms: Callable[[], int] = wall_clock_ms
    run_in_thread: ThreadRunner = run_in_thread
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    refusals: RefusalMetrics = field(default_factory=RefusalMetrics)
    reload: Callable[[], Awaitable[Sequence[CertificateStatus]]] = _nothing_to_reload
    destinations: Destinations = field(default_factory=Destinations)
    servers: MailServers | None = None
    user_table: UserControl | None = None
    overviews: Shared[tuple[bytes, bytes]] = field(default_factory=Shared)
    peers: AbstractSet[str] = frozenset()
    keep_expunged_s: float = field(default_factory=lambda: ContentConfig().keep_expunged_s)

    async def user_of(self, name: str) -> str | None:
        """Return whose mail an operator means: that of exactly this user, or else of a log-in name or an address.

        None: nobody's. Raises as `UserNames.ask`.
        """
        return await self.users.ask(self.oversight.name_meant(name))

    async def owner(self, name: str) -> str:
        """Return what `user_of` does, or else a deleted user or one of another cluster, by its name.

        While users are unknown, it is the user of exactly this name who has mail here. Raises UsersUnavailableError if
        none has: another user's mail may be meant.
        """
        try:
            return await self.user_of(name) or folded(name)
        except OtherClusterError:
            return folded(name)
        except UsersUnavailableError:  # or the user has just been deleted
            if not await self.status.mailboxes(folded(name)):
                raise
            return folded(name)


async def known_user(services: HttpServices, request: Request) -> str:
    """Return the user of the path, as `HttpServices.user_of` does. Raises ProblemError if nobody is meant."""
    name = request.path["user"]
    user = await services.user_of(name)
    if user is None:
        raise no_such_user(name)
    return user
