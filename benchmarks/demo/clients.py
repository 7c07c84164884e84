"""A user's mail programs, one at each data centre: they act by LMTP and IMAP and record everything answered by OK.

They are plain clients of the standard library; any answer but OK raises ActionError.
"""

from __future__ import annotations

import imaplib
import re
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.clusters.cluster import PASSWORD, Node
from benchmarks.demo.account import Folder, Ledger, Mail, Shown

USER = "alice"
LISTED = re.compile(rb'^\([^)]*\) "/" "?([^"]+)"?$')
FETCHED = re.compile(rb"UID (\d+) FLAGS \(([^)]*)\) EMAILID \(([^)]+)\)")
SUBJECT = re.compile(rb"^Subject: ([^\r]*)\r$", re.MULTILINE)
LINE_AND_LITERAL = 2  # imaplib's form of a message: a pair of the line before its literal, and the literal


class ActionError(Exception):
    """A node refused an action of the demo; the message quotes it."""


class Desk:
    """The user at one data centre. All desks write into one ledger."""

    def __init__(self, node: Node, ledger: Ledger) -> None:
        self.sid = node.sid
        self.node = node
        self._ledger = ledger

    # ---- acting

    def deliver(self, subject: str) -> None:
        """Deliver a mail, as an outside mail server does."""
        text = _text(subject)
        with smtplib.LMTP(*self.node.address("lmtp")) as lmtp:
            try:
                lmtp.sendmail("shop@example.org", [USER], text)
            except smtplib.SMTPException as error:
                raise ActionError(f"{self.sid} does not take {subject!r}: {error}") from error
        self._ledger.accepted["INBOX", subject] = text

    def append(self, folder: str, subject: str) -> None:
        """Put a mail into a folder, as a mail program does."""
        text = _text(subject)
        with self._imap() as imap:
            self._check(imap.append(folder, "", "", text), f"append to {folder}")
        self._ledger.accepted[folder, subject] = text

    def flag(self, subject: str, flag: str, *, is_set: bool) -> None:
        with self._imap("INBOX") as imap:
            uid = self._uid(imap, subject)
            self._check(imap.uid("STORE", uid, "+FLAGS" if is_set else "-FLAGS", f"({flag})"), f"store {flag}")
        self._ledger.flags[("INBOX", subject), flag] = is_set

    def expunge(self, subject: str) -> None:
        with self._imap("INBOX") as imap:
            uid = self._uid(imap, subject)
            self._check(imap.uid("STORE", uid, "+FLAGS", r"(\Deleted)"), "store")
            self._check(imap.expunge(), "expunge")
        self._ledger.removed.add(("INBOX", subject))

    def create(self, folder: str) -> None:
        with self._imap() as imap:
            self._check(imap.create(folder), f"create {folder}")

    def delete(self, folder: str) -> None:
        """Delete a folder with the mail that is seen in it here, and only that."""
        seen = self.shown()[folder]
        with self._imap() as imap:
            self._check(imap.delete(folder), f"delete {folder}")
        self._ledger.removed |= {(folder, mail.subject) for mail in seen.mails.values()}

    # ---- looking

    def shown(self) -> Shown:
        """Return everything that the user sees here."""
        with self._imap() as imap:
            _, listed = imap.list()
            names = [match[1].decode() for line in listed if isinstance(line, bytes) and (match := LISTED.match(line))]
            return {name: self._folder(imap, name) for name in names}

    def uid(self, subject: str) -> int:
        """Return the UID of a mail in INBOX here."""
        with self._imap("INBOX") as imap:
            return int(self._uid(imap, subject))

    def _folder(self, imap: imaplib.IMAP4, name: str) -> Folder:
        self._check(imap.select(name, readonly=True), f"select {name}")
        _, uidvalidity = imap.response("UIDVALIDITY")
        _, fetched = imap.uid("FETCH", "1:*", "(UID FLAGS EMAILID BODY.PEEK[])")
        mails = dict(_mail(*part) for part in fetched if isinstance(part, tuple) and len(part) == LINE_AND_LITERAL)
        return Folder(int(uidvalidity[0]), mails)

    @contextmanager
    def _imap(self, folder: str | None = None) -> Iterator[imaplib.IMAP4]:
        with imaplib.IMAP4(*self.node.address("imap")) as imap:
            imap.login(USER, PASSWORD)
            if folder is not None:
                self._check(imap.select(folder), f"select {folder}")
            yield imap

    def _uid(self, imap: imaplib.IMAP4, subject: str) -> str:
        _, found = imap.uid("SEARCH", "SUBJECT", f'"{subject}"')
        if not found or not found[0]:
            raise ActionError(f"{self.sid} does not show {subject!r}")
        return str(found[0].split()[-1].decode())

    def _check(self, answer: tuple[str, object], what: str) -> None:
        if answer[0] != "OK":
            raise ActionError(f"{self.sid}: {what}: {answer}")


def _mail(head: bytes, text: bytes) -> tuple[int, Mail]:
    fetched, subject = FETCHED.search(head), SUBJECT.search(text)
    if fetched is None or subject is None:
        raise ActionError(f"an answer to FETCH that was not expected: {head!r}")
    flags = frozenset(fetched[2].decode().split()) - {r"\Recent"}
    return int(fetched[1]), Mail(fetched[3].decode(), subject[1].decode(), flags, text)


def _text(subject: str) -> bytes:
    return (
        f"From: shop@example.org\r\nTo: {USER}@example.org\r\nSubject: {subject}\r\n\r\nAbout: {subject}.\r\n".encode()
    )
