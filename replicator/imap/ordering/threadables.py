"""Messages that are to be put into threads, with what the algorithms of THREAD know of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from replicator.imap.ordering.header_facts import MESSAGE_ID, REFERENCES, SENT_MS, SUBJECT
from replicator.imap.ordering.parts import in_order
from replicator.imap.ordering.sorting import sent_or_received
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue
from replicator.imap.work_meter import WorkMeter
from replicator.mail.view import Message

_NAME_WORK = 10  # steps for a message id that is kept in memory, and one for each
_OCTETS_A_STEP = 4  # of its octets


class MessageIds(dict[bytes, int]):
    """The numbers of the message ids that were asked for, from 0 on. Raises WorkExceededError."""

    def __init__(self, work: WorkMeter) -> None:
        super().__init__()
        self._work = work

    def __missing__(self, message_id: bytes) -> int:
        self._work.spend(_id_work(message_id))
        number = self[message_id] = len(self)
        return number


class Threadables:
    """Messages, by their places in ascending order of UID, with their facts.

    `dates_ms`: of the Date fields, or else the internal ones. `subjects`: base subjects, and whether they are those of
    replies. `own_ids`: the messages' own ids; `references`: numbers of the ids that a message refers to, by its place.
    `size`: the number of messages and of references.
    """

    def __init__(self, work: WorkMeter, *, with_subjects: bool = True, with_ids: bool = True) -> None:
        self.uids = array("I")
        self.dates_ms: list[int] = []
        self.subjects: list[tuple[str, bool]] = []
        self.own_ids: list[bytes | None] = []
        self.references: dict[int, Sequence[int]] = {}
        self.ids = MessageIds(work)
        self.size = 0
        self._work = work
        self._with_subjects, self._with_ids = with_subjects, with_ids
        self.columns: list[Column[ColumnValue]] = [SENT_MS]
        """The columns to read of the messages' headers."""
        self.columns.extend((SUBJECT,) if with_subjects else ())
        self.columns.extend((MESSAGE_ID, REFERENCES) if with_ids else ())

    def __len__(self) -> int:
        return len(self.uids)

    def add(self, messages: Sequence[Message], columns: Columns) -> None:
        """Add messages, in ascending order of UID, with the columns that are read of them. Raises WorkExceededError."""
        if self._with_ids:
            own_ids = columns.of(MESSAGE_ID)
            self._work.spend(sum(_id_work(one) for one in own_ids if one is not None))
            self.own_ids += own_ids
            for place, references in enumerate(columns.of(REFERENCES), len(self)):
                if references:
                    self._work.spend(len(references))
                    self.size += len(references)
                    self.references[place] = array("I", map(self.ids.__getitem__, references))
        self.subjects += columns.of(SUBJECT) if self._with_subjects else ()
        self.dates_ms += sent_or_received(messages, columns)
        self.size += len(messages)
        self.uids.extend(array("I", [message.uid for message in messages]))

    def ranks(self) -> list[int]:
        """Return the rank of each message by date, and then by UID."""
        ranks = [0] * len(self)
        for rank, place in enumerate(in_order(range(len(self)), self.dates_ms.__getitem__)):
            ranks[place] = rank
        return ranks


def _id_work(message_id: bytes) -> int:
    return _NAME_WORK + len(message_id) // _OCTETS_A_STEP
