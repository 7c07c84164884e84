"""Server replies: reply codes (RFC 5321 section 4.2) with enhanced status codes (RFC 2034, RFC 3463)."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.errors import (
    ContentUnavailableError,
    DatabaseFailedError,
    DiskFullError,
    DurabilityError,
    FolderNotFoundError,
    InvalidNameError,
    MailboxFullError,
    MailError,
    MessageTooLargeError,
    NotReadyError,
    QuotaExceededError,
    UnavailableError,
    UsersUnavailableError,
)

TEXT_MAX = 480
"""Characters of text: RFC 5321 section 4.5.3.1.5 allows 512 octets in a reply line, codes and CRLF included."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply. A greeting and the answer to LHLO have no enhanced status code (RFC 2034 section 4)."""

    code: int
    enhanced: str | None
    text: str

    def encode(self) -> bytes:
        """Return the line to send."""
        prefix = f"{self.code} {self.enhanced} " if self.enhanced else f"{self.code} "
        text = self.text[:TEXT_MAX]
        if not text.isprintable():
            text = "".join(character if character.isprintable() else "?" for character in text)
        return prefix.encode() + text.encode("ascii", "replace") + b"\r\n"


# Constant replies only; replies with a number or a name are created where they are sent.
OK = Reply(250, "2.0.0", "OK")
SENDER_OK = Reply(250, "2.1.0", "sender OK")
RECIPIENT_OK = Reply(250, "2.1.5", "recipient OK")
SEND_MESSAGE = Reply(354, None, "send the message, end with <CRLF>.<CRLF>")
ENDED = Reply(421, "4.3.2", "an operator has ended this session; try again later")
BYE = Reply(221, "2.0.0", "bye")
CANNOT_VERIFY = Reply(252, "2.0.0", "cannot verify users; mail is accepted, and delivery is tried")
HELP = Reply(214, "2.0.0", "RFC 2033: LHLO MAIL RCPT DATA RSET NOOP VRFY QUIT HELP STARTTLS")

START_TLS = Reply(220, "2.0.0", "begin TLS now")
NO_TLS = Reply(502, "5.5.1", "TLS is already in use, or not configured here")

UNKNOWN_COMMAND = Reply(500, "5.5.1", "unknown command")
NOT_SMTP = Reply(500, "5.5.1", "this is LMTP: start with LHLO (RFC 2033 section 4.1)")
BARE_LF = Reply(500, "5.5.2", "a line must end with CRLF, not with LF alone")
NOT_UTF8 = Reply(500, "5.5.2", "the line is neither ASCII nor UTF-8")
BAD_LHLO = Reply(501, "5.5.4", "write LHLO and the name of your host")
BAD_SENDER = Reply(501, "5.1.7", "write MAIL FROM:<address> and parameters")
BAD_RECIPIENT = Reply(501, "5.1.3", "write RCPT TO:<address>")
NO_ARGUMENTS = Reply(501, "5.5.4", "this command takes no parameters")
WRONG_ORDER = Reply(503, "5.5.1", "wrong order: send LHLO, MAIL, RCPT, DATA")
NO_RECIPIENTS = Reply(503, "5.5.1", "there is no valid recipient")
UNKNOWN_PARAMETER = Reply(555, "5.5.4", "unknown parameter or value")
NEEDS_SMTPUTF8 = Reply(553, "5.6.7", "an address outside ASCII needs MAIL with SMTPUTF8")
UNKNOWN_USER = Reply(550, "5.1.1", "no such user here")
TOO_MANY_RECIPIENTS = Reply(452, "4.5.3", "too many recipients; send the message again for the rest")

LINE_TOO_LONG = Reply(421, "4.5.2", "line too long; closing")
TOO_MANY_ERRORS = Reply(421, "4.7.0", "too many errors; closing")
TOO_MUCH_DATA = Reply(421, "4.3.4", "the message is far too large; closing")
TOO_SLOW = Reply(421, "4.4.2", "the message did not end in time; closing")
IDLE_TOO_LONG = Reply(421, "4.4.2", "idle for too long; closing")
TOO_MANY_CONNECTIONS = Reply(421, "4.3.2", "too many connections; come back later")


def delivered(user: str, uid: int) -> Reply:
    """Return the reply to a stored message, with its UID: senders write the reply to their own logs."""
    return Reply(250, "2.0.0", f"<{user}> INBOX uid {uid} stored")


def too_large(max_message_bytes: int) -> Reply:
    """Return the reply to a message that is too large (RFC 1870 section 6)."""
    return Reply(552, "5.3.4", f"the message is larger than {max_message_bytes} bytes")


def reply_for(error: MailError) -> Reply:
    """Return the reply for an error of the mail store. With 4xx the sender keeps the message and tries again."""
    match error:
        case DiskFullError():
            return Reply(452, "4.3.1", str(error))
        case DurabilityError() | UsersUnavailableError() | NotReadyError() | DatabaseFailedError():
            return Reply(451, "4.3.0", str(error))
        case UnavailableError() | ContentUnavailableError():  # the latter: the master did not get all parts of it
            return Reply(451, "4.4.1", str(error))
        case FolderNotFoundError():  # INBOX was just replaced by another folder; the next attempt finds the new one
            return Reply(451, "4.2.0", str(error))
        case QuotaExceededError(defer=True):
            return Reply(452, "4.2.2", str(error))
        case MailboxFullError() | QuotaExceededError():
            return Reply(552, "5.2.2", str(error))
        case MessageTooLargeError():
            return Reply(552, "5.2.3", str(error))
        case InvalidNameError():
            return Reply(550, "5.1.1", str(error))
        case _:
            return Reply(554, "5.2.0", str(error))
