"""Compare what the nodes showed: find conflicts and their outcomes, and check that nothing was lost.

The module does no I/O. A mail is identified by its EMAILID (RFC 8474), which stays with it through merges, and by its
subject, which the demo uses once in a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

Place = tuple[str, str]
"""A folder's name and a mail's subject."""


@dataclass(frozen=True)
class Mail:
    emailid: str
    subject: str
    flags: frozenset[str]
    text: bytes = field(repr=False)


@dataclass(frozen=True)
class Folder:
    """A folder as IMAP shows it. `mails` by UID."""

    uidvalidity: int
    mails: Mapping[int, Mail]


Shown = Mapping[str, Folder]
"""A user's mail at one node at one moment: folders by name."""


@dataclass
class Ledger:
    """Changes for which clients have heard OK: accepted mails, expunged ones, and the last setting of flags."""

    accepted: dict[Place, bytes] = field(default_factory=dict)
    removed: set[Place] = field(default_factory=set)
    flags: dict[tuple[Place, str], bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Conflict:
    """One row of the table: the state on each side, and the state on all nodes now."""

    what: str
    left: str
    right: str
    now: str


@dataclass(frozen=True)
class Check:
    """A promise, the result of checking it, and numbers or names as evidence."""

    promise: str
    kept: bool
    detail: str


# ---- conflicts


def conflicts(left: Sequence[Shown], right: Sequence[Shown], now: Shown) -> list[Conflict]:
    """Return what both sides did to the same thing while they were apart.

    `left` and `right` are the states that each side showed, in order: the first from before the cut, the last from just
    before the heal.
    """
    return [
        *_folder_conflicts(left, right, now),
        *_uid_conflicts(left, right, now),
        *_flag_conflicts(left[-1], right[-1], now),
        *_expunge_conflicts(left, right, now),
    ]


def _uid_conflicts(left: Sequence[Shown], right: Sequence[Shown], now: Shown) -> Iterator[Conflict]:
    """Yield UIDs that the sides showed for different mails, under a UIDVALIDITY that still stands."""
    ours, theirs = _ever(left), _ever(right)
    for key in sorted(ours.keys() & theirs.keys()):
        (name, uidvalidity, uid), here, there = key, ours[key], theirs[key]
        if here.emailid == there.emailid or name not in now or now[name].uidvalidity != uidvalidity:
            continue
        became = "; ".join(
            f"{_quoted(mail)} {uid} → {found[0]}" for mail in (here, there) if (found := _find(now, name, mail))
        )
        yield Conflict(
            f"UID {uid} of {name}",
            _as_left(here, left[-1], name),
            _as_left(there, right[-1], name),
            f"{became}; {uid} is {_use(now[name], uid)}",
        )


def _flag_conflicts(left: Shown, right: Shown, now: Shown) -> Iterator[Conflict]:
    for name in sorted(left.keys() & right.keys()):
        others = {mail.emailid: mail for mail in right[name].mails.values()}
        for mail in left[name].mails.values():
            other = others.get(mail.emailid)
            if other is not None and other.flags != mail.flags:
                became = _flags_of(now, name, mail)
                yield Conflict(f"flags of {_quoted(mail)}", _flags(mail.flags), _flags(other.flags), became)


def _expunge_conflicts(left: Sequence[Shown], right: Sequence[Shown], now: Shown) -> Iterator[Conflict]:
    """Yield mails that one side expunged and whose flags the other changed."""
    for name, folder in left[0].items():
        for mail in folder.mails.values():
            ours, theirs = (_state(name, mail, shown[-1]) for shown in (left, right))
            if "expunged" in {ours, theirs} and {ours, theirs} - {"expunged", "as it was"}:
                yield Conflict(f"mail {_quoted(mail)}", ours, theirs, _flags_of(now, name, mail))


def _folder_conflicts(left: Sequence[Shown], right: Sequence[Shown], now: Shown) -> Iterator[Conflict]:
    """Yield folders that one side deleted and the other used, and folders that both created."""
    before = left[0]
    for name in sorted(left[-1].keys() | right[-1].keys()):
        base, ours, theirs = (shown.get(name) for shown in (before, left[-1], right[-1]))
        if base is None and ours is not None and theirs is not None:
            one, other = (f"created, {_summary(folder, None)}" for folder in (ours, theirs))
        elif base is not None and (ours is None or theirs is None):
            one, other = ("deleted" if folder is None else _summary(folder, base) for folder in (ours, theirs))
        else:
            continue
        yield Conflict(f"folder {name}", one, other, _summary(now.get(name), None))


def _state(name: str, mail: Mail, shown: Shown) -> str:
    now = _find(shown, name, mail)
    if now is None:
        return "expunged" if name in shown else "folder deleted"
    return "as it was" if now[1].flags == mail.flags else _flags(now[1].flags)


def _summary(folder: Folder | None, base: Folder | None) -> str:
    if folder is None:
        return "gone"
    known = {mail.emailid for mail in base.mails.values()} if base else set()
    new = [mail for mail in folder.mails.values() if mail.emailid not in known]
    listed = ", ".join(_quoted(mail) for mail in new)
    if base is not None:
        return f"{len(folder.mails)} mails, new: {listed}" if new else f"{len(folder.mails)} mails"
    return f"UIDVALIDITY {folder.uidvalidity}: {listed or 'empty'}"


def _use(folder: Folder, uid: int) -> str:
    return f"that of {_quoted(folder.mails[uid])}" if uid in folder.mails else "unused"


def _as_left(mail: Mail, last: Shown, name: str) -> str:
    return _quoted(mail) if _find(last, name, mail) else f"{_quoted(mail)}, then expunged"


def _flags_of(shown: Shown, name: str, mail: Mail) -> str:
    found = _find(shown, name, mail)
    return _flags(found[1].flags) if found else "expunged"


def _find(shown: Shown, name: str, mail: Mail) -> tuple[int, Mail] | None:
    mails = shown[name].mails if name in shown else {}
    return next(((uid, found) for uid, found in mails.items() if found.emailid == mail.emailid), None)


def _ever(moments: Sequence[Shown]) -> dict[tuple[str, int, int], Mail]:
    """Return (folder, UIDVALIDITY, UID) -> the mail that it last named."""
    return {
        (name, folder.uidvalidity, uid): mail
        for shown in moments
        for name, folder in shown.items()
        for uid, mail in folder.mails.items()
    }


def _quoted(mail: Mail) -> str:
    return f"“{mail.subject}”"


def _flags(flags: frozenset[str]) -> str:
    return " ".join(sorted(flags)) or "none"


# ---- promises


def nothing_lost(ledger: Ledger, final: Mapping[str, Shown]) -> Check:
    """Check that every acknowledged mail is at every node, once and with its body, unless it was expunged."""
    wanted = {place: text for place, text in ledger.accepted.items() if place not in ledger.removed}
    wrong = [
        f"{subject!r} in {name} at {sid}"
        for sid, shown in final.items()
        for (name, subject), text in wanted.items()
        if [mail.text.endswith(text) for mail in _mails(shown, name) if mail.subject == subject] != [True]
    ]
    held = ", ".join(f"{sum(len(folder.mails) for folder in shown.values())} at {sid}" for sid, shown in final.items())
    counts = f"{len(ledger.accepted)} mails heard OK - {len(ledger.removed)} expunged = {len(wanted)}; there are {held}"
    return Check("Nothing was lost, nothing is there twice", not wrong, _said("missing or wrong: ", wrong) or counts)


def nothing_back(ledger: Ledger, final: Mapping[str, Shown]) -> Check:
    """Check that expunged mail is gone everywhere, and that every mail shown was sent."""
    wanted = ledger.accepted.keys() - ledger.removed
    extra = sorted(
        f"{mail.subject!r} in {name} at {sid}"
        for sid, shown in final.items()
        for name in shown
        for mail in _mails(shown, name)
        if (name, mail.subject) not in wanted
    )
    return Check(
        "Nothing that was expunged came back", not extra, _said("back: ", extra) or f"{len(ledger.removed)} stay gone"
    )


def all_alike(final: Mapping[str, Shown], digests: Mapping[str, str], waiting: Mapping[str, int]) -> Check:
    """Check that all nodes show the same to a client, their digests are equal, and no entry waits."""
    alike = all(one == other for one, other in pairwise(final.values()))
    kept = alike and len(set(digests.values())) == 1 and not any(waiting.values())
    shown = ", ".join(f"{sid} {digest[:8]}" for sid, digest in digests.items())
    texts = "" if alike else "; but IMAP shows different mail"
    return Check("All nodes show the same", kept, f"digests {shown}{texts}")


def uids_mean_one_mail(moments: Sequence[Mapping[str, Shown]]) -> Check:
    """Check that at each node a UID under one UIDVALIDITY never named two mails. `moments` in order."""
    broken: list[str] = []
    named: dict[tuple[str, str, int, int], str] = {}
    for sid, shown in chain.from_iterable(moment.items() for moment in moments):
        for (name, uidvalidity, uid), mail in _ever([shown]).items():
            if named.setdefault((sid, name, uidvalidity, uid), mail.emailid) != mail.emailid:
                broken.append(f"{sid}: UID {uid} of {name}")
    return Check(
        "A UID never named two mails at one node", not broken, _said("reused: ", broken) or f"{len(named)} UIDs watched"
    )


def uidvalidity_kept(before: Shown, now: Shown) -> Check:
    """Check that folders that existed before still have their UIDVALIDITY."""
    both = sorted(before.keys() & now.keys())
    changed = [name for name in both if before[name].uidvalidity != now[name].uidvalidity]
    return Check(
        "Mail programs keep their caches",
        not changed,
        _said("UIDVALIDITY has changed of ", changed) or f"UIDVALIDITY unchanged of {', '.join(both)}",
    )


def flags_kept(ledger: Ledger, final: Mapping[str, Shown]) -> Check:
    """Check that every flag is as its last change left it, on whichever side that was made."""
    wrong = [
        f"{flag} of {subject!r} at {sid}"
        for sid, shown in final.items()
        for ((name, subject), flag), is_set in ledger.flags.items()
        for mail in _mails(shown, name)
        if mail.subject == subject and (flag in mail.flags) != is_set
    ]
    return Check("Every flag is as it was last set", not wrong, _said("not: ", wrong) or f"{len(ledger.flags)} flags")


def session_is_legal(count: int, heard: Sequence[str], final: int) -> Check:
    """Check the messages that a connected client heard, from `count` mails on: RFC 3501 sections 7.3.1 and 7.4.1."""
    legal = True
    for number, what in chain.from_iterable(re.findall(r"^\* (\d+) (EXISTS|EXPUNGE)$", line) for line in heard):
        legal = legal and (int(number) >= count if what == "EXISTS" else 1 <= int(number) <= count)
        count = int(number) if what == "EXISTS" else count - 1
    kept = legal and count == final
    return Check(
        "A client that stayed connected was told it all", kept, f"it counts {count} messages, the folder has {final}"
    )


def _said(what: str, items: Sequence[str]) -> str:
    return what + "; ".join(items) if items else ""


def _mails(shown: Shown, name: str) -> list[Mail]:
    return list(shown[name].mails.values()) if name in shown else []
