"""Mail clients of node processes, made of the standard library."""

from __future__ import annotations

import imaplib
import re
import smtplib

import pytest

from benchmarks.clusters.cluster import PASSWORD, Node
from tests.imap_data.corpus import corpus

OUR_HEADERS = re.compile(rb"\AReturn-Path: [^\r]*\r\nReceived: [^\r]*\r\n(?:[ \t][^\r]*\r\n)*")


def hard_messages() -> list[bytes]:
    """Return the corpus of difficult messages, with CRLF at line ends."""
    if not corpus():
        pytest.skip("this Python lacks its test package (Debian: libpython3-testsuite)")
    return [re.sub(rb"\r\n|\r|\n", b"\r\n", body) for body in corpus().values()]


def log_in(client: imaplib.IMAP4, user: str, password: str) -> None:
    """Log in as soon as the node serves: a new one refuses until it has met the others, which may take seconds."""
    while client.state != "AUTH":
        try:
            client.login(user, password)
        except imaplib.IMAP4.error as error:
            if "[UNAVAILABLE]" not in str(error):
                raise


def imap(node: Node, user: str = "alice", mailbox: str | None = "INBOX") -> imaplib.IMAP4:
    client = imaplib.IMAP4(*node.address("imap"))
    log_in(client, user, PASSWORD)
    if mailbox is not None:
        assert client.select(mailbox)[0] == "OK"
    return client


def deliver(node: Node, bodies: list[bytes], recipients: list[str]) -> None:
    with smtplib.LMTP(*node.address("lmtp")) as client:
        client.ehlo_or_helo_if_needed()
        for body in bodies:
            client.mail("sender@example.org", ["BODY=8BITMIME"])
            for recipient in recipients:
                assert client.rcpt(recipient)[0] == 250
            assert client.data(body)[0] == 250
            for _ in recipients[1:]:
                assert client.getreply()[0] == 250


def uids(client: imaplib.IMAP4, *criteria: str) -> list[str]:
    _, data = client.uid("SEARCH", *(criteria or ("ALL",)))
    return [uid.decode() for uid in data[0].split()]


def flags(client: imaplib.IMAP4, uid: str) -> set[bytes]:
    _, data = client.uid("FETCH", uid, "(FLAGS)")
    assert isinstance(data[0], bytes)
    return set(imaplib.ParseFlags(data[0])) - {b"\\Recent"}


def until(client: imaplib.IMAP4, condition: object) -> None:
    """Send NOOP, by which a client hears of other nodes' changes, until the condition holds."""
    assert callable(condition)
    for _ in range(2000):
        client.noop()
        if condition():
            return
    raise AssertionError("the change did not arrive")
