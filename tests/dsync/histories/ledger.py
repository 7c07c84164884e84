"""Records of what the users of one history were told OK for, with which the servers are compared in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.dsync.histories.side import Account


@dataclass
class Ledger:
    """Mails by tokens, of which each server may show several copies."""

    name: str
    texts: dict[str, bytes] = field(default_factory=dict)  # of every mail, whether it was accepted or not
    accepted: set[str] = field(default_factory=set)
    expunged: set[str] = field(default_factory=set)  # in any folder, alone or with the folder
    copied: set[str] = field(default_factory=set)
    dovecots_copies: set[str] = field(default_factory=set)  # GUIDs that Dovecot has given to two mails of a folder
    homes: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # ids of a folder where nodes had a mail in it
    cut: int | None = None  # the number of the time, now, in which some nodes do not reach each other
    flagged: dict[tuple[str, str], set[int | None]] = field(default_factory=dict)  # and in which of those times
    renumbered: set[tuple[str, int | None]] = field(default_factory=set)  # by a sync in one of those times
    unflagged: set[tuple[str, str]] = field(default_factory=set)

    def new_mail(self) -> tuple[str, bytes]:
        """Return the token and the text of a mail that no server has seen."""
        token = f"{self.name}.{len(self.texts)}"
        self.texts[token] = f"Message-ID: <{token}@example.org>\r\nSubject: x\r\n\r\n.\r\n{token}\r\n".encode()
        return token, self.texts[token]

    @property
    def united(self) -> set[str]:
        """Mails that came to two folders of one name, on both sides of a cut: they may be there twice (design, section 3)."""
        return {token for (token, _), homes in self.homes.items() if len(homes) > 1}

    def check(self, account: Account) -> None:
        """Compare what a server shows with what users were told."""
        shown = [mail for folder in account.folders.values() for mail in folder.mails]
        lost = self.accepted - self.expunged - account.tokens
        assert not lost, f"lost: {sorted(lost)}"
        wrong = [mail for mail in shown if mail.text != self.texts.get(mail.token)]
        assert not wrong, f"other texts: {wrong}"
        flags = dict[str, frozenset[str]]()
        for mail in shown:
            if mail.token not in self.copied:
                flags[mail.token] = flags.get(mail.token, frozenset()) | mail.flags
        counts = Counter(mail.token for mail in shown if mail.token not in self.copied | self.united)
        assert max(counts.values(), default=1) == 1, f"mails that are there twice: {counts}"
        gone = [
            (token, flag)
            for (token, flag), cuts in self.flagged.items()
            if token in flags
            and flag not in flags[token]
            and (token, flag) not in self.unflagged
            # Flags that the other side of a cut gives a mail that gets another UID are lost (design, section 3).
            and not any(cut is not None and (token, cut) in self.renumbered for cut in cuts)
        ]
        assert not gone, f"flags that nobody has cleared: {sorted(gone)}"
        stray = [(token, flag) for token in flags for flag in flags[token] if (token, flag) not in self.flagged]
        assert not stray, f"flags that nobody has set: {sorted(stray)}"
