"""Errors of a request, for reasons that its sender can understand.

Each door translates these once, at its edge, into its own protocol's replies. Any other exception is a defect of this
program. The text is one line, says what is wrong and what to do, and may be shown to a user.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class MailError(Exception):
    """Base of all errors that a door reports to its client."""


class FolderNotFoundError(MailError):
    """A folder that does not exist."""


class FolderExistsError(MailError):
    """A folder of that name exists already."""


class InvalidNameError(MailError):
    """An invalid name of a folder (empty, too long, with control characters, INBOX in a wrong place) or annotation."""


class InvalidFlagError(MailError):
    """A flag that no message can have, or that clients may not set."""


class FlagLimitError(MailError):
    """A keyword that is too long, or one keyword more than a mailbox can have."""


class MessageTooLargeError(MailError):
    """A message that exceeds the size limit announced by the door."""


class UnknownEncodingError(MailError):
    """A part's Content-Transfer-Encoding is unknown, so the part cannot be decoded."""


class ContentUnavailableError(MailError):
    """The message's body is neither here nor at any node that can be reached."""


class DurabilityError(MailError):
    """Fewer nodes than `durability.copies` are reachable and `when_short` is "refuse". Nothing was stored."""


class UnavailableError(MailError):
    """The change could not be finished in time. It may or may not have happened; trying again is safe."""


class DatabaseFailedError(MailError):
    """This node's database failed. A change may or may not have been made; trying again is safe."""


class NotReadyError(UnavailableError):
    """This node lacks mail that the cluster has. Nothing was done; another node may serve, or this one later."""


class UsersUnavailableError(MailError):
    """The list of users is unknown: the passwd-file has not been readable yet, or has just changed."""


class UserNotLearnedError(UsersUnavailableError):
    """A name of which this process does not know yet whether a user has it: `UserNames.ask` asks."""

    def __init__(self, name: str) -> None:
        super().__init__("the server that knows the users has not been asked yet; try again")
        self.name = name


class OtherClusterError(UsersUnavailableError):
    """The user's mail is in another cluster of the site. Whoever sent the request here is to ask there."""


class DiskFullError(MailError):
    """The disk is full, here or at a node that should take a copy. This attempt stored nothing; reading goes on."""


class HistoryError(Exception):
    """A peer sent an entry that no node can have numbered. The text names the entry; nothing was changed."""


class QuotaExceededError(MailError):
    """The user's mail would take more than it may. Nothing was stored.

    `defer`: whoever delivers the message is to keep it and try again, because the user may make room.
    """

    def __init__(self, text: str, *, defer: bool = False) -> None:
        super().__init__(text)
        self.defer = defer


class MailboxFullError(MailError):
    """No UIDs or UIDVALIDITYs are left, or the user has as many folders as one may have. Nothing was stored."""


class ConfigError(Exception):
    """An unusable configuration. The text names the file and the line."""


class DataError(Exception):
    """Node data that cannot be used now: another process holds it, or the disk fails to deliver it."""


class RunsTwiceError(DataError):
    """Another process runs as this node and keeps running. The text says which, and what to do."""


def leaves(group: BaseExceptionGroup[E]) -> list[E]:
    """Return the errors of a group and of the groups nested in it, in order; never empty."""
    found: list[E] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
