"""Records of what the users of one history were told OK for, with which the servers are compared in the end."""

from __future__ import annotations

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
    flagged: set[tuple[str, str]] = field(default_factory=set)
    unflagged: set[tuple[str, str]] = field(default_factory=set)

    def new_mail(self) -> tuple[str, bytes]:
        """Return the token and the text of a mail that no server has seen."""
        token = f"{self.name}.{len(self.texts)}"
        self.texts[token] = f"Message-ID: <{token}@example.org>\r\nSubject: x\r\n\r\n.\r\n{token}\r\n".encode()
        return token, self.texts[token]

    def check(self, account: Account) -> None:
        """Compare what a server shows with what users were told."""
        shown = [mail for folder in account.folders.values() for mail in folder.mails]
        lost = self.accepted - self.expunged - account.tokens
        assert not lost, f"lost: {sorted(lost)}"
        wrong = [mail for mail in shown if mail.text != self.texts.get(mail.token)]
        assert not wrong, f"other texts: {wrong}"
        flags = {mail.token: mail.flags for mail in shown if mail.token not in self.copied}
        lasting = self.flagged - self.unflagged
        gone = [(token, flag) for token, flag in lasting if token in flags and flag not in flags[token]]
        assert not gone, f"flags that nobody has cleared: {sorted(gone)}"
        stray = [(token, flag) for token in flags for flag in flags[token] if (token, flag) not in self.flagged]
        assert not stray, f"flags that nobody has set: {sorted(stray)}"
