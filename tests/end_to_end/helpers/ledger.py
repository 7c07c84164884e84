"""Records of what clients were told, with which the cluster is compared from outside.

A token in Message-ID names each mail. Nothing here knows how the nodes work.
"""

from __future__ import annotations

import hashlib
import imaplib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.clusters.cluster import PASSWORD, Node

TOKEN = re.compile(rb"^Message-ID: <([^@>]+)@", re.MULTILINE | re.IGNORECASE)
UID = re.compile(rb"\bUID (\d+)")
FLAGS = re.compile(rb"FLAGS \(([^)]*)\)")
PATIENCE_S = 60.0  # of a client: longer than a node takes to carry out or refuse a change


@dataclass(frozen=True)
class Seen:
    """A message in a mailbox, as a client sees it."""

    uid: int
    token: str
    flags: frozenset[str]
    content: bytes  # the body, or the header line that was fetched


def log_in(node: Node, user: str) -> imaplib.IMAP4:
    with node.site.enter():
        client = imaplib.IMAP4(*node.address("imap"), timeout=PATIENCE_S)
    client.login(user, PASSWORD)
    return client


def number_of(client: imaplib.IMAP4, name: str) -> int:
    """Return a number from the response to SELECT, such as UIDNEXT."""
    value = client.response(name)[1][-1]
    assert value is not None, f"SELECT does not tell {name}"
    return int(value)


def fetch(client: imaplib.IMAP4, item: str = "BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]") -> list[Seen]:
    """Return all messages of the selected mailbox."""
    return list(_parsed(client.uid("FETCH", "1:*", f"(UID FLAGS {item})")[1]))


def uids_in_responses(answer: Sequence[object]) -> set[int]:
    """Return the UIDs of FETCH responses without literals, such as those to STORE."""
    return {int(uid[1]) for line in answer if isinstance(line, bytes) and (uid := UID.search(line))}


def _parsed(data: Sequence[object]) -> Iterator[Seen]:
    for at, part in enumerate(data):
        if isinstance(part, tuple):
            after = data[at + 1] if at + 1 < len(data) else b""
            told = part[0] + (after if isinstance(after, bytes) else b"")
            uid, flags, token = UID.search(told), FLAGS.search(told), TOKEN.search(part[1])
            assert uid, told
            assert flags, told
            assert token, told
            without_recent = frozenset(flags[1].decode().split()) - {"\\Recent"}
            yield Seen(int(uid[1]), token[1].decode(), without_recent, part[1])


class Cache:
    """A cache of one user's INBOX at one node, over all sessions there; it checks what each session shows."""

    def __init__(self, sid: str) -> None:
        self.sid = sid
        self._names: dict[tuple[int, int], str] = {}  # (UIDVALIDITY, UID) -> token
        self._uidnext: dict[int, int] = {}  # UIDVALIDITY -> as it was last announced
        self._gone: set[str] = set()

    def select(self, client: imaplib.IMAP4, item: str = "BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]") -> list[Seen]:
        """Select INBOX, check all its messages against the cache, and return them.

        Raises imaplib's error with the answer if the node cannot show INBOX now.
        """
        answer, [text, *_] = client.select("INBOX")
        if answer != "OK":
            raise client.error(f"SELECT: {answer} {text!r}")
        uidvalidity, uidnext = number_of(client, "UIDVALIDITY"), number_of(client, "UIDNEXT")
        floor = self._uidnext.get(uidvalidity, 0)
        assert uidnext >= floor, f"{self.sid}: UIDNEXT {uidnext} after {floor}"
        seen = fetch(client, item)
        for message in seen:
            self._note(uidvalidity, message, floor)
        assert len({message.token for message in seen}) == len(seen), f"{self.sid}: a mail is there twice"
        self._uidnext[uidvalidity] = uidnext
        return seen

    def _note(self, uidvalidity: int, message: Seen, floor: int) -> None:
        where, name = f"{self.sid}: UID {message.uid}", (uidvalidity, message.uid)
        assert name in self._names or message.uid >= floor, f"{where} is new, under the announced UIDNEXT {floor}"
        known = self._names.setdefault(name, message.token)
        assert known == message.token, f"{where} was {known} and is {message.token}"
        assert message.token not in self._gone, f"{where} is {message.token}, which was expunged"

    def expunged(self, token: str) -> None:
        """Note that this node has shown that the mail is gone: it must not come back here."""
        self._gone.add(token)


@dataclass
class Ledger:
    """Mail sent, and answers heard. Only one worker notes a given keyword of a mail; all workers note the rest.

    A mail that is sent while its master falls silent is sent again, and may then be on two branches. An expunge on one
    removes only the placement that its client saw (design section 3), so only `calm` mails must never come back.
    """

    bodies: dict[str, bytes] = field(default_factory=dict)  # of every mail sent, acknowledged or not
    accepted: set[str] = field(default_factory=set)
    expunged: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)  # an expunge was requested, and its result is unknown
    calm: set[str] = field(default_factory=set)  # sent while no link or node was about to change
    calm_workers: frozenset[str] = frozenset()
    keywords: dict[tuple[str, str], bool | None] = field(default_factory=dict)  # None: unknown
    stories: dict[str, list[str]] = field(default_factory=dict)  # of each mail, for people who look into a failure
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new_mail(self, worker: str) -> tuple[str, bytes]:
        with self.lock:
            token = f"{worker}.{len(self.bodies)}"
            if worker in self.calm_workers:
                self.calm.add(token)
            filler = hashlib.sha256(token.encode()).hexdigest() * (len(self.bodies) % 40)
            self.bodies[token] = f"Message-ID: <{token}@example.org>\r\nSubject: x\r\n\r\n{filler}\r\n".encode()
            return token, self.bodies[token]

    def tell(self, token: str, what: str) -> None:
        self.stories.setdefault(token, []).append(f"{time.time():.3f} {threading.current_thread().name} {what}")

    def check(self, shown: dict[str, list[Seen]]) -> None:
        """Compare what all nodes show, once all links are mended, with the answers."""
        first, *others = shown
        for sid in others:
            assert shown[sid] == shown[first], f"{sid} and {first} show different mailboxes"
        seen = {message.token: message for message in shown[first]}
        assert not [token for token, count in Counter(m.token for m in shown[first]).items() if count > 1]
        lost = self.accepted - self.expunged - self.doubtful - seen.keys()
        assert not lost, f"mail that was acknowledged is lost: {[self.stories[token] for token in lost]}"
        back = self.expunged & self.calm & seen.keys()
        assert not back, f"expunged mail is back: {[self.stories[token] for token in back]}"
        assert seen.keys() <= self.bodies.keys()
        for token, message in seen.items():
            assert message.content.endswith(self.bodies[token]), f"{token} has another body"
        wrong = {
            (token, keyword): wanted
            for (token, keyword), wanted in self.keywords.items()
            if wanted is not None and token in seen and (keyword in seen[token].flags) != wanted
        }
        assert not wrong, f"flags that are not as they were last set: {wrong}"
