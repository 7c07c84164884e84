"""Mails that differ by a number, and which of them a node reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from replicator.mail.mailstore import MailStore, NewMessage
from replicator.mail.view import Message
from tests.one_node import HookedMail


def mail_of(number: int) -> bytes:
    lines = [
        f"From: Ann <ann@example.org>\r\nTo: {'bob' if number % 2 == 0 else 'amy'}@example.org",
        f"Date: {9 - number} Jan 2024 10:00:00 +0000\r\nSubject: number {number}\r\nMessage-ID: <{number}@x>",
        *([f"References: <{number - 1}@x>"] if number in {2, 3} else []),
    ]
    return "\r\n".join([*lines, "", "Hello\r\n"]).encode()


class Reads:
    """The messages of which outlines and bodies are asked for."""

    def __init__(self, mail: MailStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uids: list[int] = []
        outlines = mail.outlines

        async def asked(messages: Iterable[Message], version: int) -> Mapping[bytes, bytes]:
            messages = [*messages]
            self.uids += [message.uid for message in messages]
            return await outlines(messages, version)

        monkeypatch.setattr(mail, "outlines", asked)


async def fill_inbox(mail: HookedMail, numbers: Iterable[int]) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for number in numbers:
        await mail.save(inbox, NewMessage(mail_of(number)))
