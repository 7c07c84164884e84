"""A mailbox as one client was told it, and the rules of IMAP for what may be told when.

The client knows nothing but what the server has said (RFC 9051 sections 5.5 and 7; RFC 7162; RFC 5267 section 4.3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from protocol.values import UID_MAX
from tests.replication.sessions.facts import Facts, Place
from tests.replication.sessions.notified import Notified
from tests.replication.sessions.searches import Context, Slot, numbers_of

_FETCH = re.compile(r"\* (\d+) FETCH \((.*)\)")
NUMBERS = " 1:* "
"""A search key of sequence numbers."""

_OWN = ("APPEND", "COPY", "UID COPY", "MOVE", "UID MOVE", "NOTIFY", "SELECT", "EXAMINE")
"""Commands during which messages may be announced without the items of NOTIFY."""

_SYSTEM = {"\\Answered", "\\Flagged", "\\Deleted", "\\Seen", "\\Draft"}


def may_expunge(command: str) -> bool:
    """Return True if sequence numbers may change during the command (RFC 9051 section 7.5.1, RFC 7162, 3.2.10.2)."""
    if command.startswith(("FETCH", "STORE", "SEARCH", "SORT", "THREAD", "UNSELECT", "CLOSE")):
        return False
    return not (command.startswith(("UID SEARCH", "UID SORT")) and NUMBERS in command)


@dataclass
class Aware:
    """Extensions that the client has enabled. `notified`: its last NOTIFY.

    `has_said_condstore`: a command that says so has been carried out.
    """

    condstore: bool = False
    has_said_condstore: bool = False
    qresync: bool = False
    notified: Notified | None = None


@dataclass
class Cache:
    """A client's cache of a mailbox: see `Told.cache`."""

    sid: str
    name: str
    uidvalidity: int
    modseq: int
    messages: dict[int, tuple[frozenset[str], int | None]]  # UID -> flags, size
    is_foreign: bool = False  # it came from one side of a cut to the other


@dataclass
class Told:
    """The selected mailbox."""

    sid: str
    name: str
    facts: Facts
    aware: Aware
    is_foreign: bool = False
    read_only: bool = False
    uidvalidity: int = 0
    uidnext: int = 0
    mailbox_id: str = ""
    slots: list[Slot] = field(default_factory=list)
    flags: frozenset[str] = frozenset()
    permanent: frozenset[str] = frozenset()
    stated_modseq: int = 0  # the last HIGHESTMODSEQ that was told
    modseq: int = 0  # what the client may keep as HIGHESTMODSEQ (RFC 7162 section 6)
    contexts: dict[str, Context] = field(default_factory=dict)
    saved: list[Slot] = field(default_factory=list)
    to_describe: list[Slot] = field(default_factory=list)  # new messages of which NOTIFY has asked for FETCH items
    owed: list[Slot] = field(default_factory=list)  # messages that a search left out, so that they must be expunged
    earlier: set[int] = field(default_factory=set)  # UIDs of VANISHED (EARLIER)
    vanished: set[int] = field(default_factory=set)  # UIDs of VANISHED
    copied: str = ""  # the line with COPYUID of a MOVE
    results: list[str] = field(default_factory=list)  # SEARCH, SORT and ESEARCH of the present command
    command: str = ""
    _heard: set[int] = field(default_factory=set)  # ids of slots whose FETCH came during this command
    _heard_flags: set[int] = field(default_factory=set)
    _seen_modseq: int = 0
    _code_came: bool = False
    _before: tuple[int, int] = (0, 0)

    @property
    def is_open(self) -> bool:
        """True once the SELECT has succeeded."""
        return bool(self.mailbox_id)

    # ---- commands

    def begin(self, command: str) -> None:
        """Note that the client sends a command."""
        self.command, self.results = command, []
        self._heard, self._heard_flags, self._seen_modseq, self._code_came = set(), set(), 0, False
        self.note_before(self.uidvalidity)

    def note_before(self, uidvalidity: int) -> None:
        """Note which numbers had been told when the client asked."""
        key = (self.sid, uidvalidity)
        self._before = (self.facts.uidnext.get(key, 0), self.facts.modseq.get(key, 0))

    def end(self, answer: str) -> None:
        """Note the tagged answer, at whose time the client may keep what it has seen."""
        self._code(answer)
        if not self._code_came and self.aware.condstore and self.aware.notified is None:  # else not all may be told
            self.modseq = max(self.modseq, self._seen_modseq)
        if may_expunge(self.command):
            left = [slot for slot in self.owed if slot in self.slots]
            assert not left, f"a search left out {left}, which are not expunged"
            self.owed = []

    def owe(self, slot: Slot) -> bool:
        """Note a message that the server took for expunged: it must be told as expunged next. Return True."""
        self.owed.append(slot)
        return True

    def begin_context(self, tag: str, context: Context) -> None:
        """Note a search that is to be kept up to date; its results come with the answer."""
        self.contexts[tag] = context

    def was_heard(self, slot: Slot) -> bool:
        """Return True if the present command has told something of the message."""
        return id(slot) in self._heard

    def was_heard_flags(self, slot: Slot) -> bool:
        """Return True if the present command has told the message's flags."""
        return id(slot) in self._heard_flags

    # ---- untagged responses

    def hear(self, line: str) -> None:
        """Take in an untagged response."""
        if found := re.fullmatch(r"\* (\d+) EXISTS", line):
            self._announced(int(found[1]) - len(self.slots))
        elif found := re.fullmatch(r"\* (\d+) EXPUNGE", line):
            assert not self.aware.qresync, "RFC 7162 section 3.2.10: VANISHED takes the place of EXPUNGE"
            self._remove(int(found[1]) - 1)
        elif found := re.fullmatch(r"\* VANISHED ([\d:,]+)", line):
            assert self.aware.qresync
            for uid in numbers_of(found[1]):
                self.vanished.add(uid)
                self._remove(self._position(uid))
        elif found := re.fullmatch(r"\* VANISHED \(EARLIER\) ([\d:,]+)", line):
            self._vanished_earlier(set(numbers_of(found[1])))
        elif found := _FETCH.fullmatch(line):
            self._fetched(int(found[1]), found[2])
        elif found := re.fullmatch(r"\* FLAGS \((.*)\)", line):
            self.flags = frozenset(found[1].split())
            assert self.flags >= _SYSTEM
        elif line.startswith("* ESEARCH") and ("ADDTO" in line or "REMOVEFROM" in line):
            tag = line.split('"')[1]
            assert tag in self.contexts, f"an update of no search: {line}"
            self.contexts[tag].apply(line, self.slots)
        elif line.startswith(("* SEARCH", "* SORT", "* ESEARCH")):
            self.results.append(line)
            if (context := self.contexts.get(line.split('"')[1]) if '"' in line else None) is not None:
                found = re.search(r" ALL ([\d:,]+)", line)
                numbers = numbers_of(found[1]) if found else []
                context.results = [*numbers] if context.by_uid else [self.slots[number - 1] for number in numbers]
        elif "[COPYUID" in line:
            self.copied = line
        elif found := re.match(r'\* NO \[NOUPDATE "(\w+)"\]', line):
            self.contexts.pop(found[1], None)
        elif found := re.fullmatch(r"\* (\d+) RECENT", line):
            assert int(found[1]) <= len(self.slots)
        else:
            self._code(line)

    def _announced(self, count: int) -> None:
        assert count >= 0, "EXISTS removes no messages"
        least = self.uidnext if self.is_open else 1
        # A mailbox that never had mail has HIGHESTMODSEQ 1, since 0 would mean that there is none.
        since = self.stated_modseq if self.is_open and self.stated_modseq > 1 else 0
        new = [Slot(since=since, least_uid=least) for _ in range(count)]
        self.slots += new
        if (notified := self.aware.notified) is not None:
            assert notified.may_announce(self.command), f"EXISTS, which was not asked for, during {self.command}"
            if notified.selected.items and not self.command.startswith(_OWN):  # RFC 5465 section 5.2
                self.to_describe += new

    def _code(self, line: str) -> None:
        if found := re.search(r"\[UIDVALIDITY (\d+)\]", line):
            self.uidvalidity = int(found[1])
            self.note_before(self.uidvalidity)
        elif found := re.search(r"\[UIDNEXT (\d+)\]", line):
            self.uidnext = int(found[1])
            self.facts.rises(self.facts.uidnext, self._before[0], (self.sid, self.uidvalidity), self.uidnext)
        elif found := re.search(r"\[HIGHESTMODSEQ (\d+)\]", line):
            self.stated_modseq = self.modseq = int(found[1])
            self._code_came = True
        elif (found := re.search(r"\[MAILBOXID \((\w+)\)\]", line)) and not self.is_open:
            self.mailbox_id = found[1]
            self.facts.has_uidvalidity(self.sid, self.uidvalidity, self.mailbox_id)
        elif found := re.search(r"\[PERMANENTFLAGS \((.*?)\)\]", line):
            self.permanent = frozenset(found[1].split())
            expected = frozenset() if self.read_only else self.flags | {"\\*"}
            assert self.permanent == expected, f"{line}, but FLAGS are {sorted(self.flags)}"

    def _remove(self, position: int) -> None:
        allowed, notified = may_expunge(self.command), self.aware.notified
        if notified is not None:
            allowed = notified.may_expunge(self.command, allowed=allowed)
        assert allowed, f"an expunge during {self.command or 'no command'}"
        assert 0 <= position < len(self.slots), "an expunge of no message"
        slot = self.slots.pop(position)
        for tag, context in self.contexts.items():
            assert context.is_lost or not context.has(slot), (
                f"{tag} still has a message that is expunged (RFC 5267 section 4.3.4)"
            )

    def _position(self, uid: int) -> int:
        """Return the position of a UID, of which the client may know only between which other UIDs it lies.

        It then takes the last message there, which promises most; and has lost what it knew by numbers.
        """
        start = max(
            (position + 1 for position, slot in enumerate(self.slots) if (slot.uid or UID_MAX) < uid), default=0
        )
        stop = next((n for n, slot in enumerate(self.slots[start:], start) if slot.uid is not None), len(self.slots))
        if stop < len(self.slots) and self.slots[stop].uid == uid:
            return stop
        assert start < stop, f"VANISHED {uid}, which the client was never told of"
        for context in self.contexts.values():
            context.is_lost |= stop - start > 1 and not context.by_uid
        return stop - 1

    def _vanished_earlier(self, uids: set[int]) -> None:
        assert "QRESYNC" in self.command or "VANISHED" in self.command, "VANISHED (EARLIER) that was not asked for"
        present = {slot.uid for slot in self.slots} & uids
        assert not present, f"VANISHED (EARLIER) {present}, which are there"
        self.earlier |= uids

    def _fetched(self, number: int, items: str) -> None:
        assert 1 <= number <= len(self.slots), f"FETCH of message {number} of {len(self.slots)}"
        slot = self.slots[number - 1]
        self._heard.add(id(slot))
        if found := re.search(r"UID (\d+)", items):
            self._has_uid(slot, int(found[1]))
        place = Place(self.sid, self.uidvalidity, slot.uid or 0)
        if found := re.search(r"MODSEQ \((\d+)\)", items):
            self._has_modseq(slot, int(found[1]), items)
        if found := re.search(r"FLAGS \((.*?)\)", items):
            flags = frozenset(found[1].split()) - {"\\Recent"}
            if (notified := self.aware.notified) is not None:
                allowed = notified.may_tell_flags(self.command, is_new=slot.flags is None)
                assert allowed, f"flags, which were not asked for, during {self.command}"
            known = {flag.lower() for flag in self.flags}
            assert {flag.lower() for flag in flags} <= known, f"{sorted(flags)}, and FLAGS are {sorted(self.flags)}"
            assert len({flag.lower() for flag in flags}) == len(flags)
            slot.flags = flags
            self._heard_flags.add(id(slot))
            if "MODSEQ" in items and slot.uid is not None and slot.modseq is not None:
                self.facts.has_flags(place, slot.modseq, flags)
        if found := re.search(r"RFC822\.SIZE (\d+)", items):
            assert slot.size in {None, int(found[1])}
            slot.size = int(found[1])
            assert slot.uid is not None
            email_id = re.search(r"EMAILID \((\w+)\)", items)
            self.facts.is_message(place, slot.size, email_id[1] if email_id else None)

    def _has_uid(self, slot: Slot, uid: int) -> None:
        assert slot.uid in {None, uid}, f"a sequence number that stood for UID {slot.uid} stands for UID {uid}"
        if slot.uid is None:
            assert uid >= slot.least_uid, f"new mail has UID {uid}, below the UIDNEXT {slot.least_uid} that was told"
        slot.uid = uid
        known = [one.uid for one in self.slots if one.uid is not None]
        assert known == sorted(set(known)), "RFC 9051 section 2.3.1.1: UIDs ascend"

    def _has_modseq(self, slot: Slot, modseq: int, items: str) -> None:
        before, flags = slot.modseq, re.search(r"FLAGS \((.*?)\)", items)
        assert modseq > slot.since, f"new mail at MODSEQ {modseq}, after HIGHESTMODSEQ {slot.since} was told"
        assert before is None or modseq >= before, f"MODSEQ falls from {before} to {modseq}"
        if flags and slot.flags not in {None, frozenset(flags[1].split()) - {"\\Recent"}}:
            assert before is None or modseq > before, f"flags have changed and MODSEQ {modseq} has not"
            told = self.stated_modseq if self.aware.condstore else 0
            assert modseq > told, f"a change at MODSEQ {modseq}, after HIGHESTMODSEQ {told} was told: {self.command}"
        slot.modseq = modseq
        self._seen_modseq = max(self._seen_modseq, modseq)

    # ---- what the client keeps

    def cache(self) -> Cache:
        """Return what a client keeps: the messages up to the first one that it does not know."""
        messages: dict[int, tuple[frozenset[str], int | None]] = {}
        for slot in self.slots:
            if slot.uid is None or slot.flags is None:
                break
            messages[slot.uid] = (slot.flags, slot.size)
        return Cache(self.sid, self.name, self.uidvalidity, self.modseq, messages, self.is_foreign)
