"""THREAD (RFC 5256 section 3): each algorithm against one that follows the RFC's text step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.imap.ordering.header_facts import MESSAGE_ID, REFERENCES, SENT_MS, SUBJECT
from replicator.imap.ordering.order import Order
from replicator.imap.ordering.references import by_references, by_refs
from replicator.imap.ordering.threadables import MessageIds, Threadables
from replicator.imap.ordering.threads import Threads, by_ordered_subject, printed
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue
from replicator.imap.wire.responses import thread_response
from replicator.imap.work_meter import WorkExceededError, WorkMeter
from replicator.mail.view import Message
from tests.effort import examples

IDS = 8


class Mail(NamedTuple):
    """A message and what THREAD knows of it; ids are numbers here."""

    uid: int
    date_ms: int
    subject: str = ""
    is_reply: bool = False
    own_id: int | None = None
    references: Sequence[int] = ()

    def row(self) -> Message:
        return Message(self.uid, bytes(16), 1, frozenset(), 0, 0, bytes(32), Dot("dc1.1", self.uid), 0)


def threadables(mails: Sequence[Mail], work: WorkMeter | None = None) -> Threadables:
    columns: dict[Column[ColumnValue], Sequence[ColumnValue]] = {
        SENT_MS: [mail.date_ms for mail in mails],
        SUBJECT: [(mail.subject, mail.is_reply) for mail in mails],
        MESSAGE_ID: [None if mail.own_id is None else b"%d@x" % mail.own_id for mail in mails],
        REFERENCES: [tuple(b"%d@x" % number for number in mail.references) for mail in mails],
    }
    messages = Threadables(work or WorkMeter(10**9))
    assert messages.columns == [*columns]
    messages.add([mail.row() for mail in mails], Columns(columns, dict.fromkeys(columns, 0)))
    return messages


def shown(threads: Threads, mails: Sequence[Mail]) -> str:
    return formatted(printed(threads), [mail.uid for mail in mails])


def formatted(order: Order, uids: Sequence[int]) -> str:
    return b"".join(order.forms).decode() % tuple(uids[place] for place in order.places)


# ---- the RFC, taken literally ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Box:
    """A message, or the dummy for one that others refer to."""

    message: Mail | None = None
    parent: Box | None = None
    children: list[Box] = field(default_factory=list)

    def adopt(self, child: Box) -> None:
        child.leave()
        child.parent = self
        self.children.append(child)

    def leave(self) -> None:
        if self.parent is not None:
            self.parent.children.remove(self)
        self.parent = None

    def is_above(self, other: Box | None) -> bool:
        while other is not None and other is not self:
            other = other.parent
        return other is self

    def key(self) -> tuple[int, int]:
        if self.message is None:
            return min(child.key() for child in self.children)
        return self.message.date_ms, self.message.uid

    def written(self) -> str:
        own = "" if self.message is None else str(self.message.uid)
        if len(self.children) == 1:
            return f"{own} {self.children[0].written()}"
        return own + (" " if own and self.children else "") + "".join(f"({child.written()})" for child in self.children)


def linked(messages: Sequence[Mail]) -> list[Box]:
    """Return what steps 1 to 3 leave below the root."""
    boxes: dict[int, Box] = {}
    alone: list[Box] = []
    for message in messages:
        chain = [boxes.setdefault(number, Box()) for number in message.references]
        for before, after in pairwise(chain):
            if after.parent is None and not after.is_above(before):
                before.adopt(after)
        if message.own_id is None or (message.own_id in boxes and boxes[message.own_id].message is not None):
            alone.append(box := Box())
        else:
            box = boxes.setdefault(message.own_id, Box())
        box.message = message
        box.leave()
        if chain and not box.is_above(chain[-1]):
            chain[-1].adopt(box)
    return pruned([box for box in (*boxes.values(), *alone) if box.parent is None], at_root=True)


def pruned(boxes: list[Box], *, at_root: bool = False) -> list[Box]:
    kept: list[Box] = []
    for box in boxes:
        box.children = pruned(box.children)
        if box.message is None and (not at_root or len(box.children) < 2):
            kept += box.children
        else:
            kept.append(box)
    return kept


def by_date(boxes: list[Box]) -> list[Box]:
    for box in boxes:
        box.children = by_date(box.children)
    return sorted(boxes, key=Box.key)


def joined(boxes: list[Box]) -> list[Box]:
    """Return what step 5 leaves below the root."""

    def subject(box: Box) -> str:
        message = box.message or box.children[0].message
        assert message is not None
        return message.subject

    def is_reply(box: Box) -> bool:
        return box.message is not None and box.message.is_reply

    table: dict[str, Box] = {}
    for box in boxes:
        if text := subject(box):
            known = table.get(text)
            if known is None or (
                known.message is not None and (box.message is None or (is_reply(known) and not is_reply(box)))
            ):
                table[text] = box
    root = list(boxes)
    for box in boxes:
        known = table.get(subject(box))
        if known is None or known is box:
            continue
        root.remove(box)
        if known.message is None and box.message is None:
            known.children += box.children
        elif known.message is None or (is_reply(box) and not is_reply(known)):
            known.children.append(box)
        else:
            root.remove(known)
            table[subject(box)] = both = Box(children=[known, box])
            root.append(both)
    return root


def latest(box: Box) -> tuple[int, int]:
    own = [] if box.message is None else [(box.message.date_ms, box.message.uid)]
    return max([*own, *map(latest, box.children)])


def written(boxes: list[Box]) -> str:
    return "".join(f"({box.written()})" for box in boxes)


# ---- properties --------------------------------------------------------------------------------------------------


@st.composite
def mailboxes(draw: st.DrawFn) -> list[Mail]:
    number = st.integers(0, IDS - 1)
    return [
        Mail(
            uid,
            draw(st.integers(0, 4)),
            draw(st.sampled_from(["", "a", "b"])),
            draw(st.booleans()),
            draw(st.none() | number),
            draw(st.lists(number, max_size=4)),
        )
        for uid in range(1, draw(st.integers(0, 9)) + 1)
    ]


@settings(max_examples=examples(300, 3000), deadline=None)
@given(mailboxes(), st.integers(1, 3))
def test_references_and_refs_are_what_the_text_says(mails: list[Mail], at_once: int) -> None:
    messages, work = threadables(mails), WorkMeter(10_000)
    with patch("replicator.imap.ordering.parts.SORTED_AT_ONCE", at_once):
        references = shown(by_references(messages, work), mails)
        refs = shown(by_refs(messages, work), mails)
    assert references == written(by_date(joined(by_date(linked(mails)))))
    assert refs == written(sorted(by_date(linked(mails)), key=latest))


@given(mailboxes())
def test_ordered_subject_is_what_the_text_says(mails: list[Mail]) -> None:
    threads: dict[str, list[Mail]] = {}
    for mail in sorted(mails, key=lambda one: (one.date_ms, one.uid)):
        threads.setdefault(mail.subject, []).append(mail)
    boxes = [Box(first, children=list(map(Box, others))) for first, *others in threads.values()]
    assert shown(by_ordered_subject(threadables(mails)), mails) == written(boxes)


# ---- examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roots", "children", "text"),
    [
        ([], {}, ""),
        ([2, 3], {3: [6], 6: [4, 44], 4: [23], 44: [7], 7: [96]}, "(2)(3 6 (4 23)(44 7 96))"),
        ([100], {100: [3, 5]}, "((3)(5))"),
    ],
)
@pytest.mark.parametrize("at_once", [2, 5000])
def test_threads_are_printed_as_in_the_examples(
    roots: list[int], children: dict[int, list[int]], text: str, at_once: int
) -> None:
    """RFC 5256 section 4."""
    threads = Threads(range(100))
    threads.roots, threads.children = roots, children
    with patch("replicator.imap.ordering.threads.PRINTED_AT_ONCE", at_once):
        order = printed(threads)
    assert formatted(order, range(100)) == text
    assert b"".join(thread_response(order.places, order.forms)).decode() == f"* THREAD {text}".rstrip() + "\r\n"


def reply(uid: int, *references: int) -> Mail:
    return Mail(uid, uid, own_id=uid, references=references)


@pytest.mark.parametrize(
    ("mails", "text"),
    [
        ([reply(1), reply(2, 1), reply(3, 1, 2), reply(4, 1)], "(1 (2 3)(4))"),
        ([reply(3, 1, 2), reply(4, 1, 2)], "((3)(4))"),  # 1 and 2 are not here
        ([reply(3, 1, 2), reply(2)], "(2 3)"),
        ([reply(1, 2), reply(2, 1)], "(2 1)"),  # no circle
        ([reply(1, 1)], "(1)"),
        ([reply(1), reply(2, 1), reply(2, 1)._replace(uid=5, date_ms=5)], "(1 (2)(5))"),  # one id twice
    ],
)
def test_messages_are_put_below_what_they_refer_to(mails: list[Mail], text: str) -> None:
    assert shown(by_references(threadables(mails), WorkMeter(1000)), mails) == text


@pytest.mark.parametrize("order", [1, -1])
def test_threads_may_be_as_deep_as_a_mailbox_is_large(order: int) -> None:
    count = 5000
    mails = [reply(1), *(reply(uid, uid - 1) for uid in range(2, count))][::order]
    text = shown(by_references(threadables(mails), WorkMeter(10**6)), mails)
    assert text == f"({' '.join(map(str, range(1, count)))})"


def test_hostile_references_meet_the_limit_of_work() -> None:
    """To put a thread below a deep one, all that is above it is looked through for a circle."""
    deep = 1000
    chain = [[number, number + 1] for number in range(deep)]
    pairs = [[number, number + 1] for number in range(deep + 1, 2 * deep, 2)]
    below = [[deep, first] for first, _ in pairs]
    mails = [Mail(uid, 0, references=references) for uid, references in enumerate(chain + pairs + below, 1)]
    with pytest.raises(WorkExceededError):
        by_references(threadables(mails), WorkMeter(100_000))
    assert shown(by_references(threadables(mails[:deep]), WorkMeter(10_000)), mails)


def test_links_cost_work() -> None:
    work = WorkMeter(100)
    by_references(threadables([reply(1), reply(2, 1), reply(4, 1, 3)]), work)
    assert work.done == 3 + 3


def test_message_ids_cost_work() -> None:
    work = WorkMeter(100)
    ids = MessageIds(work)
    assert [ids[name] for name in (b"a@x", b"b@x", b"a@x")] == [0, 1, 0]
    with pytest.raises(WorkExceededError):
        ids[b"a" * 500]
    for mail in (Mail(1, 0, own_id=10**99), Mail(1, 0, references=range(8))):
        threadables([mail] * 2, WorkMeter(100))
        with pytest.raises(WorkExceededError):
            threadables([mail] * 20, WorkMeter(100))
