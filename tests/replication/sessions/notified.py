"""Wishes of one client by its last NOTIFY (RFC 5465), what may be told it, and what it knows by that of its folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

NEW, GONE, FLAGS, NAMES = "MessageNew", "MessageExpunge", "FlagChange", "MailboxName"
SUBSCRIPTIONS, METADATA, SERVER_METADATA = "SubscriptionChange", "MailboxMetadataChange", "ServerMetadataChange"
ITEMS = "(UID FLAGS)"

_OF_FLAGS = {"UNSEEN", "HIGHESTMODSEQ"}
"""Items that change with flags alone."""

Counters = dict[str, int]


class OfSelected(NamedTuple):
    """Wishes for the selected mailbox. `kind`: SELECTED, SELECTED-DELAYED, or nothing. `items`: of new messages."""

    kind: str = ""
    events: tuple[str, ...] = ()
    items: str = ""


class Group(NamedTuple):
    """Events of other mailboxes."""

    kind: str
    names: tuple[str, ...]
    events: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Return True if the group is about this folder; none has others below it."""
        return name in self.names or self.kind == "PERSONAL" or (self.kind == "INBOXES" and name == "INBOX")


SELECTED_CHOICES = (
    OfSelected(),
    OfSelected("SELECTED"),
    *(OfSelected(kind, (NEW, GONE, FLAGS), ITEMS) for kind in ("SELECTED", "SELECTED-DELAYED")),
    OfSelected("SELECTED", (NEW, GONE)),
    OfSelected("SELECTED-DELAYED", (NEW, GONE, FLAGS)),
    OfSelected("SELECTED-DELAYED", (NEW, GONE), ITEMS),
    OfSelected("SELECTED", (NEW, GONE, FLAGS)),
)
OTHER_CHOICES = (
    (),
    (Group("PERSONAL", (), (NEW, GONE, FLAGS, NAMES, SUBSCRIPTIONS, METADATA, SERVER_METADATA)),),
    (Group("PERSONAL", (), (NEW, GONE)),),
    (Group("INBOXES", (), (NEW, GONE, FLAGS)), Group("MAILBOXES", ("A", "B"), (NAMES, SUBSCRIPTIONS))),
    (Group("SUBTREE", ("A", "B"), (NEW, GONE, NAMES)),),
    (Group("MAILBOXES", ("INBOX", "A"), (NEW, GONE, FLAGS)), Group("PERSONAL", (), (NAMES,))),
    (Group("PERSONAL", (), (SUBSCRIPTIONS, METADATA)), Group("SUBTREE", ("B", "C"), (NEW, GONE, FLAGS))),
    (Group("PERSONAL", (), (NEW, GONE, FLAGS, NAMES)),),
)


@dataclass
class Notified:
    """The wishes of a client, and its folders as it knows them by what it was told since.

    `unsure`: names of folders whose counters it has never been told. `promised`: UIDVALIDITY -> the highest values of
    UIDNEXT and HIGHESTMODSEQ.
    """

    selected: OfSelected
    others: tuple[Group, ...]
    status: bool
    folders: set[str] = field(default_factory=set)
    subscribed: set[str] = field(default_factory=set)
    counters: dict[str, Counters] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    promised: dict[int, Counters] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that says so."""
        return "NOTIFY " + (f"SET {'STATUS ' * self.status}{' '.join(self._printed())}" if self.is_set else "NONE")

    @property
    def is_set(self) -> bool:
        """True if the client wants to hear of anything, or says so of the selected mailbox alone."""
        return bool(self.selected.kind or self.others)

    def _printed(self) -> Iterator[str]:
        if self.selected.kind:
            events = " ".join(self.selected.events).replace(NEW, f"{NEW} {self.selected.items}".rstrip())
            yield f"({self.selected.kind} {f'({events})' if events else 'NONE'})"
        for group in self.others:
            names = f"({' '.join(group.names)}) " if group.names else ""
            yield f"({group.kind} {names}({' '.join(group.events)}))"

    # ---- the selected mailbox

    @property
    def is_at_once(self) -> bool:
        """True if sequence numbers may change at any time (RFC 5465 section 6.1.1)."""
        return self.selected.kind == "SELECTED" and self.wants_new

    @property
    def wants_new(self) -> bool:
        """True if the client wants to hear of messages that come and go in the selected mailbox."""
        return NEW in self.selected.events

    def may_announce(self, command: str) -> bool:
        """Return True if new messages may be told. NOTIFY SET is a NOOP of before (RFC 5465 section 3.1)."""
        return self.wants_new or command.startswith(("NOTIFY", "SELECT", "EXAMINE"))

    def may_expunge(self, command: str, *, allowed: bool) -> bool:
        """Return True if expunged messages may be told. `allowed`: by the rules of RFC 9051."""
        own = command.startswith(("NOTIFY", "EXPUNGE", "UID EXPUNGE", "MOVE", "UID MOVE"))
        return own or self.is_at_once or (self.wants_new and bool(command) and allowed)

    def may_tell_flags(self, command: str, *, is_new: bool) -> bool:
        """Return True if flags of a message may be told. `is_new`: it was announced without them."""
        asked = command.startswith(("NOTIFY", "SELECT", "EXAMINE", "FETCH", "UID FETCH", "STORE", "UID STORE"))
        return asked or FLAGS in self.selected.events or (is_new and bool(self.selected.items))

    # ---- other mailboxes

    def wants(self, event: str, name: str) -> bool:
        """Return True if the client wants to hear of this event there."""
        return any(event in group.events and group.has(name) for group in self.others)

    def hear_status(self, name: str, values: Counters, *, asked: bool, condstore: bool) -> None:
        """Take in a STATUS (RFC 5465 sections 5.1 to 5.3). `asked`: by a command other than NOTIFY."""
        if not asked:
            assert self.wants(NEW, name), f"STATUS of {name}, which was not asked for"
            needed = {"MESSAGES", "UIDNEXT", "UIDVALIDITY"}
            needed |= {"HIGHESTMODSEQ"} if condstore or self.wants(FLAGS, name) else set()
            assert values.keys() >= needed, f"STATUS of {name} lacks {needed - values.keys()}"
        promised = self.promised.setdefault(values["UIDVALIDITY"], {})
        for item in values.keys() & {"UIDNEXT", "HIGHESTMODSEQ"}:
            assert values[item] >= promised.get(item, 0), f"{item} of {name} falls to {values[item]}: {promised}"
            promised[item] = values[item]
        before = self.counters.get(name, {})
        same = before.get("UIDVALIDITY") == values["UIDVALIDITY"]
        self.counters[name] = {**before, **values} if same else values

    def hear_list(self, name: str, attributes: set[str], old: str | None, *, asked: bool) -> None:
        """Take in a LIST (RFC 5465 sections 5.4 and 5.5)."""
        names = {name, old} - {None}
        wanted = any(self.wants(event, one or "") for event in (NAMES, SUBSCRIPTIONS) for one in names)
        assert asked or wanted, f"LIST of {name}, which was not asked for"
        if old is not None:
            assert asked or any(self.wants(NAMES, one or "") for one in names), f"a rename to {name} was not asked for"
            self._move(old, name)
        (self.folders.discard if "\\NonExistent" in attributes else self.folders.add)(name)
        (self.subscribed.add if "\\Subscribed" in attributes else self.subscribed.discard)(name)
        if "\\NonExistent" in attributes:
            self.counters.pop(name, None)

    def hear_metadata(self, name: str, *, asked: bool) -> None:
        """Take in a METADATA (RFC 5465 sections 5.6 and 5.7)."""
        of_server = not name and any(SERVER_METADATA in group.events for group in self.others)
        assert asked or of_server or self.wants(METADATA, name), f"METADATA of {name!r}, which was not asked for"

    def _move(self, old: str, new: str) -> None:
        self.folders.add(new)
        if old != "INBOX":
            self.folders.discard(old)
        if old in self.unsure:
            self.unsure.add(new)
        if old in self.counters:
            self.counters[new] = self.counters.pop(old)

    def forget(self, *names: str) -> None:
        """Forget counters of folders that the client has renamed itself, of which it hears nothing."""
        for name in names:
            self.counters.pop(name, None)
            self.unsure.add(name)

    def check_status(self, names: set[str]) -> None:
        """Check that STATUS was told of each mailbox that there was (RFC 5465 section 3.1)."""
        missing = {name for name in names - self.unsure if self.wants(NEW, name)} - self.counters.keys()
        assert not missing, f"{self.command} tells no STATUS of {sorted(missing)}"

    def check(self, there: dict[str, Counters], subscribed: set[str], selected: set[str]) -> None:
        """Check that the client knows all that it asked for. `selected`: the name of the selected mailbox, if any."""
        names = {name for name in self.folders | there.keys() if self.wants(NAMES, name)}
        assert self.folders & names == there.keys() & names, f"{sorted(self.folders)} are told and not {sorted(there)}"
        names = {name for name in self.subscribed | subscribed if self.wants(SUBSCRIPTIONS, name)}
        assert self.subscribed & names == subscribed & names, f"{sorted(self.subscribed)} are told as subscribed"
        others = there.keys() - selected
        self.check_status(others)
        for name in others & self.counters.keys():
            if self.wants(NEW, name):
                known = {**self.counters[name]}
                if not self.wants(FLAGS, name):
                    known = {item: value for item, value in known.items() if item not in _OF_FLAGS}
                fresh = {item: there[name][item] for item in known}
                assert known == fresh, f"{name} has {fresh}, and the client was told {known}"


def status_of(line: str) -> tuple[str, Counters] | None:
    """Return the mailbox and the values of a STATUS response, or None if the line is none."""
    if (found := re.fullmatch(r'\* STATUS "?(.*?)"? \((.*)\)', line)) is None:
        return None
    return found[1], {item: int(value) for item, value in re.findall(r"(\w+) (\d+)", found[2])}


def list_of(line: str) -> tuple[str, set[str], str | None] | None:
    """Return name, attributes and old name of a LIST response, or None if the line is none."""
    found = re.fullmatch(r'\* LIST \((.*?)\) "/" "?(.*?)"?(?: \("OLDNAME" \("?(.*?)"?\)\))?', line)
    return None if found is None else (found[2], set(found[1].split()), found[3])
