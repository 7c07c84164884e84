"""Clients' requests and the answers to them, compared with the state in the end.

`History` and `verify` rely on what nodes have numbered, so they accept a node that numbers what no client asked for.
Clients alone keep the ledger. A mail is named by its body's SHA-256, since no client saves the same body twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import NamedTuple

from replicator.mail.view import Message
from resync.row import Row
from tests.simulation.records.history import Placement

_DELETES_FOLDER: ContextVar[bool] = ContextVar("_DELETES_FOLDER", default=False)


class _Promise(NamedTuple):
    """The time of a promise, and for moved mail the mailbox that it left: its removal from there excuses no loss."""

    note: int
    moved_from: bytes | None


class Ledger:
    """The requests and promises: a request is noted before it is made, OK when it is heard.

    All methods but `asks_to_save` take the SHA-256 of a body in its place.
    """

    def __init__(self) -> None:
        self._asked: Counter[bytes] = Counter()  # number of times that it may exist
        self._promised: dict[tuple[bytes | None, bytes], _Promise] = {}  # mailbox and body; None: in any mailbox
        self._unwanted: dict[bytes, dict[bytes, int]] = defaultdict(
            dict
        )  # body -> mailbox that it should leave -> note
        self._notes = 0
        self._gone: set[tuple[bytes, Placement]] = set()  # removed with OK
        self._values: dict[tuple[str, str], set[bytes | None]] = defaultdict(set)  # user, annotation -> asked for
        self._annotated: set[tuple[str, bytes, str]] = set()  # user, mailbox id, annotation: set with OK
        self._restored: dict[bytes, int] = {}  # body -> note of the undelete that was done with OK

    def asks_to_save(self, body: bytes) -> bytes:
        """Note a save, and return the body's hash."""
        content_hash = sha256(body).digest()
        self._asked[content_hash] += 1
        return content_hash

    def asks_to_copy(self, messages: Iterable[Message]) -> None:
        """Note one copy of each message."""
        self._asked.update(message.content_hash for message in messages)

    def is_copied_anew(self, body: bytes) -> None:
        """Note a copy that a node itself makes: the body may exist once more."""
        self._asked[body] += 1

    def promised(self, mailbox_id: bytes | None, bodies: Iterable[bytes], moved_from: bytes | None = None) -> None:
        """Note OK: the bodies are in that mailbox; None: in one that has taken its place."""
        self._notes += 1
        self._promised |= {(mailbox_id, body): _Promise(self._notes, moved_from) for body in bodies}

    def asks_to_restore(self, body: bytes) -> int:
        """Note an undelete: the body may exist once more. Return the note for `restored`."""
        self._asked[body] += 1
        self._notes += 1
        return self._notes

    def restored(self, body: bytes, asked: int) -> None:
        """Note OK: the body is back, unless a client that may have seen it back wants it removed."""
        self._restored[body] = asked

    def asks_to_remove(self, mailbox_id: bytes, messages: Iterable[Message]) -> None:
        """Note that a client asks to remove these messages, which it sees there."""
        self._notes += 1
        for message in messages:
            self._unwanted[message.content_hash][mailbox_id] = self._notes

    def is_unwanted(self, body: bytes) -> bool:
        """Return True if a client has asked to remove the mail from any mailbox."""
        return body in self._unwanted

    def removed(self, mailbox_id: bytes, messages: Iterable[Message]) -> None:
        """Note OK: the messages are gone."""
        for message in messages:
            self._gone.update((mailbox_id, one) for one in ((message.dot, message.change), *message.also))

    @contextmanager
    def deletes_folder(self) -> Iterator[None]:
        """Note a folder's deletion: `expunges` hears of the mail that its node shows at that time."""
        token = _DELETES_FOLDER.set(True)
        try:
            yield
        finally:
            _DELETES_FOLDER.reset(token)

    def expunges(self, mailbox_id: bytes, messages: Iterable[Message]) -> None:
        """Note that a node is about to ask the master for this, on behalf of the client whose task this is."""
        if _DELETES_FOLDER.get():
            self.asks_to_remove(mailbox_id, messages)

    def asks_to_annotate(self, user: str, values: Mapping[str, bytes | None]) -> None:
        """Note values of annotations of a folder or of the account."""
        for name, value in values.items():
            self._values[user, name].add(value)

    def annotated(self, user: str, home: bytes, names: Iterable[str]) -> None:
        """Note OK: these annotations have their values, or later ones."""
        self._annotated.update((user, home, name) for name in names)

    def check_annotations(self, homes: Collection[bytes], shown: Callable[[str, bytes], Mapping[str, bytes]]) -> None:
        """Check that what clients set with OK has a value that some client asked for. `homes`: those that are left.

        A folder may have taken over the value of another one.
        """
        for user, home, name in self._annotated:
            if home in homes:
                value = shown(user, home).get(name)
                asked = self._values[user, name]
                assert value in asked, f"ledger: {name} of {user} is {value!r}, and clients set {asked}"

    def check(
        self,
        rows: Mapping[bytes, Iterable[Row]],
        existing: Collection[bytes],
        is_lost: Callable[[bytes | None, bytes], bool],
        extra: Counter[bytes],
    ) -> None:
        """Check that everything is as clients were told.

        `rows` are by mailbox; mail of mailboxes that are not `existing` is elsewhere. `is_lost`: returns True if a mail
        may be gone from a mailbox, or from all, because disks were lost. `extra`: number of additional copies of a
        mail: nodes of different components may each have moved it from a deleted folder, to different ones.
        """
        there: dict[bytes, Counter[bytes]] = defaultdict(Counter)  # body -> number of times that it is in each mailbox
        for mailbox_id, found in rows.items():
            for row in found:
                there[row.content_hash][mailbox_id] += 1
        for body in self._asked.keys() | there.keys() if self._asked else ():  # scenarios do not keep it
            most = self._asked[body] + extra[body]
            count = there[body].total()
            assert count <= most, f"ledger: {body.hex()} is there {count} times, saves and copies explain {most}"
        for (promised_to, body), promise in self._promised.items():
            place = promised_to if promised_to in existing else None
            is_there = there[body].total() if place is None else there[body][place]
            excused = self._is_unwanted(place, body, promise) or is_lost(place, body)
            assert is_there or excused, f"ledger: {body.hex()} is not in {place.hex() if place else 'any mailbox'}"

        for body, asked in self._restored.items():
            is_unwanted = any(note > asked for note in self._unwanted[body].values())
            assert there[body] or is_unwanted or is_lost(None, body), f"ledger: {body.hex()} was undeleted and is gone"

    def _is_unwanted(self, place: bytes | None, body: bytes, promise: _Promise) -> bool:
        """Return True if a client may have had the body removed from the promised mailbox, or from a later one."""
        unwanted = self._unwanted[body]
        if place is not None:
            return place in unwanted
        return any(note > promise.note or mailbox_id != promise.moved_from for mailbox_id, note in unwanted.items())

    def check_gone(self, rows: Mapping[bytes, Iterable[Row]]) -> None:
        """Check that mail removed with OK has not stayed, unless it stands for a placement that no client removed.

        Only valid if no disk was lost, since removals may be lost with it.
        """
        left = [
            row
            for mailbox_id, found in rows.items()
            for row in found
            if all((mailbox_id, one) in self._gone for one in row.placements())
        ]
        assert not left, f"ledger: removed with OK, and there: {left}"
