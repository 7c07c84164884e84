"""Random deeds of a user at one of the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from replicator.mail.dovecot_guids import guid_of
from tests.dsync.histories.ledger import Ledger
from tests.dsync.histories.side import ENDS, Account, Folder, Mail, Side

INBOX = "INBOX"
FOLDERS = ("A", "A/x", "A/x/y", "B", "B/x", "C &APw- d")
FLAGS = ("\\Seen", "\\Flagged", "\\Answered", "kw1", "$Label2")
DEEDS = {
    "append": 6,
    "flag": 5,
    "expunge": 3,
    "copy": 2,
    "move": 3,
    "create": 3,
    "rename": 2,
    "delete": 1,
    "subscribe": 1,
}
"""Kinds of deeds, and how often each is done among others."""


@dataclass
class Deeds:
    """Deeds of one user. `story`: for people who look into a failure. `kinds`: as `DEEDS`."""

    random: Random
    ledger: Ledger
    story: list[str]
    kinds: Mapping[str, int] = field(default_factory=lambda: DEEDS)

    def one(self, side: Side) -> None:
        """Do something at a server, which may refuse it."""
        [kind] = self.random.choices([*self.kinds], [*self.kinds.values()])
        account = side.account()
        if not side.is_dovecot:
            self.ledger.note_folders(account)
        try:
            match kind:
                case "append":
                    self.deliver([side])
                case "create":
                    name = self._name()
                    self._tell(side, f"creates {name}")
                    side.create(name)
                case "rename":
                    self._rename(side, account)
                case "delete":
                    self._delete(side, account)
                case "subscribe":
                    name, is_set = self._name(), self.random.random() < 0.7
                    self._tell(side, f"{'subscribes to' if is_set else 'unsubscribes from'} {name}")
                    side.subscribe(name, is_set=is_set)
                case _:
                    self._change(side, account, kind)
        except ENDS as error:
            self.story.append(f"{side.name}: {error}")
            side.renew()

    def deliver(self, sides: Sequence[Side]) -> None:
        """Save one mail at some servers."""
        token, text = self.ledger.new_mail()
        if len(sides) > 1:
            self.ledger.copied.add(token)
        for side in sides:
            folder = self.random.choice([INBOX, *side.account().folders])
            self._tell(side, f"gets {token} in {folder}")
            if side.is_dovecot:
                self.ledger.note_put(token, folder)
            try:
                side.append(folder, text)
            except ENDS as error:
                self.story.append(f"{side.name}: {error}")
                side.renew()
            else:
                self.ledger.accepted.add(token)

    def _change(self, side: Side, account: Account, kind: str) -> None:
        """Change, expunge or copy a mail."""
        filled = [(name, folder) for name, folder in account.folders.items() if folder.mails]
        if not filled:
            return
        name, folder = self.random.choice(filled)
        mail = self.random.choice(folder.mails)
        match kind:
            case "flag":
                self._flag(side, name, mail)
            case "expunge":
                self._tell(side, f"expunges {name} {mail.uid} {mail.token}")
                self.ledger.expunged.add(mail.token)
                side.expunge(name, mail.uid)
            case _:
                target = self.random.choice([*account.folders])
                if target != name or kind == "copy":
                    self._tell(side, f"{kind} {name} {mail.uid} {mail.token} -> {target}")
                    self.ledger.copied.add(mail.token)
                    if side.is_dovecot:
                        self.ledger.note_put(mail.token, target)
                    if side.is_dovecot and any(mail.guid == one.guid for one in account.folders[target].mails):
                        self.ledger.dovecots_copies.add(guid_of(mail.guid).hex())
                    side.copy(name, mail.uid, target, moves=kind == "move")

    def _flag(self, side: Side, name: str, mail: Mail) -> None:
        flag, is_set = self.random.choice(FLAGS), self.random.random() < 0.6
        self._tell(side, f"{name} {mail.uid} {mail.token} {'+' if is_set else '-'}{flag}")
        self.ledger.flag(mail, flag, is_set=is_set)
        side.flag(name, mail.uid, flag, is_set=is_set)

    def _rename(self, side: Side, account: Account) -> None:
        names = [name for name in account.folders if name != INBOX]
        if names:
            old, new = self.random.choice(names), self._name()
            self._tell(side, f"renames {old} to {new}")
            side.rename(old, new)

    def _delete(self, side: Side, account: Account) -> None:
        names = [name for name in account.folders if name != INBOX]
        if names:
            name = self.random.choice(names)
            self._tell(side, f"deletes {name}, {tokens(account.folders[name])}")
            self.ledger.expunged.update(tokens(account.folders[name]))
            if not side.is_dovecot:
                self.ledger.note_deletion(name, account.folders[name])
            side.delete(name)

    def _name(self) -> str:
        return self.random.choice(FOLDERS)

    def _tell(self, side: Side, what: str) -> None:
        self.story.append(f"{side.name}: {what}")


def tokens(folder: Folder) -> list[str]:
    """Return names of a folder's mails."""
    return [mail.token for mail in folder.mails]
