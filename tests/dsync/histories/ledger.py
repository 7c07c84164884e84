"""Records of what the users of one history were told OK for, with which the servers are compared in the end."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import combinations

from tests.dsync.histories.side import Account, Folder, Mail

PUSHED_WITHIN_S = 10.0
"""Seconds within which a sync that a node begins has told Dovecot of a change, on a machine with much other work."""


@dataclass
class Ledger:
    """Mails by tokens, each of which a server may show in several folders."""

    name: str
    texts: dict[str, bytes] = field(default_factory=dict)  # of every mail, whether it was accepted or not
    accepted: set[str] = field(default_factory=set)
    expunged: set[str] = field(default_factory=set)  # in any folder, alone or with the folder
    copied: set[str] = field(default_factory=set)  # or moved, or delivered twice: it may be there several times
    dovecots_copies: set[str] = field(default_factory=set)  # GUIDs that Dovecot has given to two mails of a folder
    namesakes: defaultdict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Ids of the folders that nodes have had under a name and a UIDVALIDITY."""
    deleted_at_nodes: set[str] = field(default_factory=set)  # folders, by their ids at nodes
    put_late: set[str] = field(default_factory=set)  # mails that Dovecot got in a folder that a sync may be deleting
    _cut: int = 0  # the number of the time, now, in which some nodes do not reach each other; 0: they all do
    _parts: int = 0
    _set_flags: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))  # and when
    _cleared_flags: set[tuple[str, str]] = field(default_factory=set)
    _renumbered: set[tuple[str, int]] = field(default_factory=set)  # mails, and in which of those times
    _homes: defaultdict[str, set[tuple[str, str, int]]] = field(default_factory=lambda: defaultdict(set))  # at nodes
    _ids_at_nodes: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by Dovecot's
    _deletions: dict[str, float] = field(default_factory=dict)  # at nodes, by names: when, by the monotonic clock

    # ---- noting

    def begin_part(self, *, is_cut: bool) -> None:
        """Note that links have changed."""
        self._parts += 1
        self._cut = (self._cut or self._parts) if is_cut else 0

    def new_mail(self) -> tuple[str, bytes]:
        """Return the token and the text of a mail that no server has seen."""
        token = f"{self.name}.{len(self.texts)}"
        self.texts[token] = f"Message-ID: <{token}@example.org>\r\nSubject: x\r\n\r\n.\r\n{token}\r\n".encode()
        return token, self.texts[token]

    def flag(self, mail: Mail, flag: str, *, is_set: bool) -> None:
        """Note that a flag is about to be set or cleared."""
        if is_set:
            self._set_flags[mail.token, flag].add(self._cut)
        else:
            self._cleared_flags.add((mail.token, flag))

    def note_deletion(self, name: str, folder: Folder) -> None:
        """Note that a node is about to delete a folder."""
        self.deleted_at_nodes.add(folder.mailbox_id)
        self._deletions[name] = time.monotonic()

    def note_put(self, token: str, name: str) -> None:
        """Note that Dovecot is about to get a mail in a folder.

        What it gets while a sync deletes the folder is deleted with it (docs/dovecot.md).
        """
        if time.monotonic() < self._deletions.get(name, -math.inf) + PUSHED_WITHIN_S:
            self.put_late.add(token)

    def note_at_dovecot(self, before: Account, after: Account) -> dict[str, list[str]]:
        """Note what a sync has changed at Dovecot, and return mail that is gone with folders, by these.

        Dovecot deletes a folder that a user has deleted at a node, at times with mail that no node has seen: where the
        node does not remember the last sync (docs/dovecot.md).
        """
        ids = {folder.mailbox_id for folder in after.folders.values()}
        gone = dict[str, list[str]]()
        for name, folder in before.folders.items():
            lost = [mail.token for mail in folder.mails if mail.token not in after.tokens]
            if lost and folder.mailbox_id not in ids:
                by_user = self._ids_at_nodes[folder.mailbox_id] & self.deleted_at_nodes
                assert by_user, f"nobody has deleted {name}, with {lost}"
                gone[name] = lost
                self.expunged.update(lost)
        return gone

    def note_at_node(self, before: Account, after: Account, dovecot: Account) -> None:
        """Note what a sync has changed at a node, and which folders are the same at both sides."""
        uids = {(folder.mailbox_id, mail.guid): mail.uid for folder in before.folders.values() for mail in folder.mails}
        for name, folder in after.folders.items():
            if name in dovecot.folders:
                self._ids_at_nodes[dovecot.folders[name].mailbox_id].add(folder.mailbox_id)
            for mail in folder.mails:
                if uids.get((folder.mailbox_id, mail.guid), mail.uid) != mail.uid:
                    self._renumbered.add((mail.token, self._cut))

    def note_folders(self, account: Account) -> None:
        """Note which folders a node has, and in which of them mails are."""
        for name, folder in account.folders.items():
            self.namesakes[name, folder.uidvalidity].add(folder.mailbox_id)
            for mail in folder.mails:
                self._homes[mail.token].add((folder.mailbox_id, name, self._cut))

    def note_doubled(self, dovecot: Account) -> None:
        """Note which mails Dovecot shows twice under one GUID: one that came amid a sync may be (docs/dovecot.md)."""
        for folder in dovecot.folders.values():
            counts = Counter(mail.guid for mail in folder.mails)
            for mail in folder.mails:
                if counts[mail.guid] > 1:
                    self.copied.add(mail.token)
                    self.dovecots_copies.add(mail.guid)

    # ---- comparing

    def check(self, account: Account) -> None:
        """Compare what a server shows in the end with what users were told."""
        self._check_flags(self.check_mails(account))

    def check_mails(self, account: Account) -> list[Mail]:
        """Compare all but flags, and return the mails of which each is there once, and has what was set of flags."""
        shown = [mail for folder in account.folders.values() for mail in folder.mails]
        lost = self.accepted - self.expunged - account.tokens
        assert not lost, f"mails that nobody has expunged are lost: {sorted(lost)}"
        wrong = [mail for mail in shown if mail.text != self.texts.get(mail.token)]
        assert not wrong, f"mails have other texts: {wrong}"
        single = [mail for mail in shown if mail.token not in self.copied]
        once = [mail for mail in single if not self._was_on_both_sides(mail)]
        counts = Counter(mail.token for mail in once)
        assert max(counts.values(), default=1) == 1, f"mails are there twice: {counts.most_common(3)}"
        return once

    def _was_on_both_sides(self, mail: Mail) -> bool:
        """Return True if the two sides of a cut had the mail in two folders of one name, or of one id at Dovecot.

        Then it may be there twice (design, section 3; docs/dovecot.md), or have the flags of one of them.
        """
        return any(
            one[0] != other[0] and ((one[1:] == other[1:] and one[2]) or self._are_one_at_dovecot(one[0], other[0]))
            for one, other in combinations(self._homes[mail.token], 2)
        )

    def _are_one_at_dovecot(self, *folders: str) -> bool:
        return any(ids.issuperset(folders) for ids in self._ids_at_nodes.values())

    def _check_flags(self, mails: list[Mail]) -> None:
        flags = defaultdict[str, set[str]](set)
        for mail in mails:
            flags[mail.token] |= mail.flags
        gone = [
            (token, flag)
            for (token, flag), cuts in self._set_flags.items()
            if token in flags
            and flag not in flags[token]
            and (token, flag) not in self._cleared_flags
            # Flags that the other side of a cut gives to a mail that gets another UID are lost (design, section 3).
            and not any(cut and (token, cut) in self._renumbered for cut in cuts)
        ]
        assert not gone, f"flags that nobody has cleared are gone: {sorted(gone)}"
        stray = [(token, flag) for token in flags for flag in flags[token] if (token, flag) not in self._set_flags]
        assert not stray, f"flags that nobody has set are there: {sorted(stray)}"
