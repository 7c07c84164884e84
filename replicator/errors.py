"""What can go wrong with a request, for a reason that its sender can understand.

Each door translates these once, at its edge, into its own protocol's words. Anything else that is raised is a
defect of ours. The text is one line, says what is wrong and what to do, and may be shown to a user.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class MailError(Exception):
    """Base of all errors that a door reports to its client."""


class FolderNotFoundError(MailError):
    """No such folder."""


class FolderExistsError(MailError):
    """The name is taken."""


class InvalidNameError(MailError):
    """A folder name that cannot be: empty, too long, control characters, INBOX where it may not be."""


class InvalidFlagError(MailError):
    """A flag that no message can have, or that is not a client's to set."""


class FlagLimitError(MailError):
    """A keyword that is too long, or one more than a mailbox can have."""


class MessageTooLargeError(MailError):
    """Larger than the limit that the door announced."""


class ContentUnavailableError(MailError):
    """The message's text is neither here nor at any node that can be reached."""


class DurabilityError(MailError):
    """Fewer nodes than `durability.copies` are reachable and `when_short` is "refuse". Nothing was stored."""


class UnavailableError(MailError):
    """The change could not be finished in time. It may or may not have happened; trying again is safe."""


class NotReadyError(UnavailableError):
    """This node does not have yet what the cluster has. Nothing was done; another node may serve, or this one later."""


class UsersUnavailableError(MailError):
    """Who has mail here cannot be known: the passwd-file has not been readable yet, or has just changed."""


class DiskFullError(MailError):
    """The disk is full, here or at a node that is to have a copy. This try has stored nothing; reading goes on."""


class HistoryError(Exception):
    """A peer sent an entry that no node can have numbered. The text names it; nothing was changed."""


class MailboxFullError(MailError):
    """No UIDs or UIDVALIDITYs are left, or the user has as many folders as one may have. Nothing was stored."""


class ConfigError(Exception):
    """A configuration that cannot be used. The text names the file and the line."""


class DataError(Exception):
    """A node's data that cannot be used now: another process has them, or the disk does not give them."""


class RunsTwiceError(DataError):
    """Another process runs as this node, and stays. The text says as what, and what to do."""


def leaves(group: BaseExceptionGroup[E]) -> list[E]:
    """The errors of a group, and of the groups within, in order; never empty."""
    found: list[E] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
