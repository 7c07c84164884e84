"""What clients were told, and whether the cluster keeps to it: all seen from outside.

A mail is named by a token of its own in Message-ID. Nothing here knows how the nodes work.
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
PATIENCE_S = 60.0  # of a client: longer than a node takes to do or refuse a change


@dataclass(frozen=True)
class Seen:
    """A message in a mailbox, as a client sees it."""

    uid: int
    token: str
    flags: frozenset[str]
    text: bytes  # whole, or the header line that was asked for


def log_in(node: Node, user: str) -> imaplib.IMAP4:
    with node.site.enter():
        client = imaplib.IMAP4(*node.address("imap"), timeout=PATIENCE_S)
    client.login(user, PASSWORD)
    return client


def number_of(client: imaplib.IMAP4, name: str) -> int:
    """A number that SELECT told, such as UIDNEXT."""
    value = client.response(name)[1][-1]
    assert value is not None, f"SELECT does not tell {name}"
    return int(value)


def fetch(client: imaplib.IMAP4, item: str = "BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]") -> list[Seen]:
    """All messages of the selected mailbox."""
    return list(_parsed(client.uid("FETCH", "1:*", f"(UID FLAGS {item})")[1]))


def uids_told(answer: Sequence[object]) -> set[int]:
    """The UIDs of FETCH responses without texts, such as STORE gives."""
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
            shown = frozenset(flags[1].decode().split()) - {"\\Recent"}
            yield Seen(int(uid[1]), token[1].decode(), shown, part[1])


class Cache:
    """What clients at one node remember of one mailbox, over all their sessions there."""

    def __init__(self, sid: str) -> None:
        self.sid = sid
        self._names: dict[tuple[int, int], str] = {}  # (UIDVALIDITY, UID) -> token
        self._uidnext: dict[int, int] = {}  # UIDVALIDITY -> as it was last announced
        self._gone: set[str] = set()

    def select(self, client: imaplib.IMAP4, item: str = "BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]") -> list[Seen]:
        """Open INBOX and look at everything in it."""
        assert client.select("INBOX")[0] == "OK"
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
        """This node has shown that the mail is gone: it never comes back here."""
        self._gone.add(token)


@dataclass
class Ledger:
    """What was sent and what was reported. One worker writes about a token's keyword; all write the rest.

    A mail that is sent while its master falls silent is tried again, and may then be in two branches. An expunge in
    one removes what its author saw (design section 3), so only calm mails can be said never to come back.
    """

    texts: dict[str, bytes] = field(default_factory=dict)  # of every mail sent, whatever came of it
    accepted: set[str] = field(default_factory=set)
    expunged: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)  # an expunge was asked for, and nobody said what came of it
    calm: set[str] = field(default_factory=set)  # sent while no line or node was about to change
    calm_workers: frozenset[str] = frozenset()
    keywords: dict[tuple[str, str], bool | None] = field(default_factory=dict)  # None: nobody said
    stories: dict[str, list[str]] = field(default_factory=dict)  # of each mail, for whoever looks into a failure
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new_mail(self, worker: str) -> tuple[str, bytes]:
        with self.lock:
            token = f"{worker}.{len(self.texts)}"
            if worker in self.calm_workers:
                self.calm.add(token)
            filler = hashlib.sha256(token.encode()).hexdigest() * (len(self.texts) % 40)
            self.texts[token] = f"Message-ID: <{token}@example.org>\r\nSubject: x\r\n\r\n{filler}\r\n".encode()
            return token, self.texts[token]

    def tell(self, token: str, what: str) -> None:
        self.stories.setdefault(token, []).append(f"{time.time():.3f} {threading.current_thread().name} {what}")

    def check(self, pictures: dict[str, list[Seen]]) -> None:
        """What all nodes show once they are whole, against what was reported."""
        first, *others = pictures
        for sid in others:
            assert pictures[sid] == pictures[first], f"{sid} and {first} show different mailboxes"
        seen = {message.token: message for message in pictures[first]}
        assert not [token for token, count in Counter(m.token for m in pictures[first]).items() if count > 1]
        lost = self.accepted - self.expunged - self.doubtful - seen.keys()
        assert not lost, f"mail that was reported OK is lost: {[self.stories[token] for token in lost]}"
        back = self.expunged & self.calm & seen.keys()
        assert not back, f"expunged mail is back: {[self.stories[token] for token in back]}"
        assert seen.keys() <= self.texts.keys()
        for token, message in seen.items():
            assert message.text.endswith(self.texts[token]), f"{token} has another text"
        wrong = {
            (token, keyword): wanted
            for (token, keyword), wanted in self.keywords.items()
            if wanted is not None and token in seen and (keyword in seen[token].flags) != wanted
        }
        assert not wrong, f"flags that are not as they were last set: {wrong}"
