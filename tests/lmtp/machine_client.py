"""A client of an LMTP machine, without a connection."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from replicator.lmtp.events import Envelope, Event, MessageBegun, MessageData, MessageDropped, MessageEnded
from replicator.lmtp.machine import LmtpMachine
from replicator.lmtp.replies import Reply, delivered
from replicator.users import Recipients
from tests.one_node import Names

USERS = Names("alice", "bob", "carol@example.org", "a b", "mülller@exämple.org", "x+y")
DELIVERED = delivered("alice", 1)
LIMIT = 1000


@dataclass
class Incoming:
    """A message that the machine passed on, joined from its pieces."""

    envelope: Envelope
    body: bytes = b""
    largest_piece: int = field(default=0, compare=False)


class MachineClient:
    """A client of a machine, which also delivers the messages that the machine passes on."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.machine = LmtpMachine("dc1", limit, Recipients(USERS).find)
        self.incoming: Incoming | None = None  # the unfinished message
        self.messages: list[Incoming] = []
        self.dropped = 0
        self.outcome: Reply = DELIVERED

    def send(self, data: bytes, size: int | None = None) -> str:
        """Feed `data` in pieces of `size`, and return the answer. A closed machine gives none."""
        output = b""
        for start in range(0, len(data), size or max(1, len(data))):
            if self.machine.closed:
                break
            self.machine.receive(data[start : start + (size or len(data))])
            while (event := self.machine.advance()) is not None:
                self.take(event)
            output += self.machine.take_output()
        return output.decode()

    def take(self, event: Event) -> None:
        if isinstance(event, MessageBegun):
            assert self.incoming is None
            self.incoming = Incoming(event.envelope)
            return
        assert self.incoming is not None
        match event:
            case MessageData(data):
                assert data
                self.incoming.body += data
                self.incoming.largest_piece = max(self.incoming.largest_piece, len(data))
            case MessageEnded():
                self.messages.append(self.incoming)
                self.machine.delivered([self.outcome] * len(self.incoming.envelope.recipients))
                self.incoming = None
            case MessageDropped():
                self.dropped += 1
                self.incoming = None

    def codes(self, data: bytes, size: int | None = None) -> list[str]:
        """Feed `data`, and return only the codes of the answer, with the enhanced ones."""
        return re.findall(r"^(\d{3} (?:\d\.\d\.\d)?)", self.send(data, size).replace("\r\n", "\n"), re.MULTILINE)
