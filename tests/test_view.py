"""Bulk changes of a view, against a view that is built anew."""

from __future__ import annotations

import random

import pytest

from protocol.values import Dot
from replicator.view import FEW, MailboxView, Message, ViewChange
from tests.store.harness import assert_same_view

FLAGS = ("\\Seen", "\\Flagged", "$Later")
SIZE = 40 * FEW  # so that changes of one message, and of most, take the ways that are meant for them


def message(dice: random.Random, uid: int, modseq: int) -> Message:
    flags = frozenset(flag for flag in FLAGS if dice.random() < 0.3)
    return Message(uid, dice.randbytes(16), modseq, flags, 0, 10, bytes(32), Dot("dc1.a", modseq), uid)


def view_of(messages: dict[int, Message]) -> MailboxView:
    return MailboxView.build(
        mailbox_id=b"m", user="alice", uidvalidity=1, uidnext=SIZE, highestmodseq=1, rows=messages.values()
    )


@pytest.mark.parametrize("seed", range(20))
def test_bulk_changes_give_the_view_that_would_be_loaded(seed: int) -> None:
    dice = random.Random(seed)
    model = {uid: message(dice, uid, 1) for uid in range(1, SIZE)}
    view = view_of(model)
    with view.subscribe() as subscription:
        for modseq in range(2, 12):
            before = dict(model)
            some = dice.choice([0, 1, SIZE // (2 * FEW), SIZE // 2, len(model)])
            expunged = sorted(dice.sample(sorted(model), min(some, len(model))))
            for uid in expunged:
                del model[uid]
            wanted = dice.choice([0, 1, SIZE // 2])
            changed = [message(dice, uid, modseq) for uid in sorted(dice.sample(range(1, 2 * SIZE), wanted))]
            model.update((one.uid, one) for one in changed)  # a merge may expunge a UID and give it to another mail
            view.apply(ViewChange(b"m", modseq, 2 * SIZE, tuple(changed), tuple(expunged)))
            assert_same_view(view, [model[uid] for uid in sorted(model)])
            told, gone = subscription.take()
            assert told == {one.uid for one in changed} - set(expunged)
            assert gone == set(expunged)
            assert {uid for uid in before if before[uid] != model.get(uid)} <= told | gone
