"""Bulk changes of a view, against a view that is built anew."""

from __future__ import annotations

import random

import pytest

from protocol.values import Dot
from replicator.mail.view import CHANGES_KEPT, STEP_WORK, MailboxView, Message, ViewChange
from tests.effort import spread
from tests.store.harness import assert_same_view

FLAGS = ("\\Seen", "\\Flagged", "$Later")
SIZE = 640


def message(dice: random.Random, uid: int, modseq: int) -> Message:
    flags = frozenset(flag for flag in FLAGS if dice.random() < 0.3)
    return Message(uid, dice.randbytes(16), modseq, flags, 0, 10, bytes(32), Dot("dc1.a", modseq), uid)


def view_of(messages: dict[int, Message]) -> MailboxView:
    return MailboxView.build(
        mailbox_id=b"m", user="alice", uidvalidity=1, uidnext=SIZE, highestmodseq=1, rows=messages.values()
    )


def assert_tells_changes(view: MailboxView) -> None:
    for since in range(view.highestmodseq + 2):
        some = view.changed_above(since)
        assert some is None or {uid for uid, one in view.messages.items() if one.modseq > since} <= some


def test_view_knows_its_latest_changes() -> None:
    view = view_of({})
    one = message(random.Random(1), 1, 1)
    for modseq in range(2, 2 * CHANGES_KEPT + 3):
        view.apply(ViewChange(b"m", modseq, SIZE, (one._replace(uid=modseq % 100 + 1, modseq=modseq),)))
    highest = view.highestmodseq
    assert view.changed_above(highest) == set()
    assert view.changed_above(highest - 2) == {modseq % 100 + 1 for modseq in (highest - 1, highest)}
    assert len(view.changed_above(highest - CHANGES_KEPT) or ()) == 100
    assert view.changed_above(1) is None


@pytest.mark.parametrize(("step_work", "changes_kept"), [(1, 1000), (100, 1), (1000, 200)])
@pytest.mark.parametrize("seed", spread(2, range(7)))
def test_bulk_changes_give_the_view_that_would_be_loaded(
    seed: int, step_work: int, changes_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.mail.view.STEP_WORK", step_work)
    monkeypatch.setattr("replicator.mail.view.CHANGES_KEPT", changes_kept)
    dice = random.Random(seed)
    model = {uid: message(dice, uid, 1) for uid in range(1, SIZE)}
    view = view_of(model)
    with view.subscribe() as subscription:
        for modseq in range(2, 12):
            before, uidnext, modseq_before = dict(model), view.uidnext, view.highestmodseq
            some = dice.choice([0, 1, 20, SIZE // 2, len(model)])
            expunged = sorted(dice.sample(sorted(model), min(some, len(model))))
            for uid in expunged:
                del model[uid]
            wanted = dice.choice([0, 1, SIZE // 2])
            changed = [
                message(dice, uid, dice.randint(1, modseq)) for uid in sorted(dice.sample(range(1, 2 * SIZE), wanted))
            ]
            model.update((one.uid, one) for one in changed)  # a merge may expunge a UID and give it to another mail
            change = ViewChange(b"m", modseq, 2 * SIZE, tuple(changed), tuple(expunged), Dot("dc1.a", modseq))
            for _ in view.apply_in_steps(change):
                assert (view.highestmodseq, view.head, view.changing) == (modseq_before, change.head, True)
                to_come = {one.uid for one in changed} - view.messages.keys()
                assert max(view.messages, default=0) < view.uidnext <= max(uidnext, min(to_come, default=view.uidnext))
                assert_same_view(view, [view.messages[uid] for uid in sorted(view.messages)])
                assert_tells_changes(view)
            assert_tells_changes(view)
            assert (view.uidnext, view.highestmodseq, view.changing) == (change.uidnext, modseq, False)
            assert_same_view(view, [model[uid] for uid in sorted(model)])
            told, gone = subscription.take()
            assert told - gone == {one.uid for one in changed} - set(expunged)
            assert gone == set(expunged)
            assert {uid for uid in before if before[uid] != model.get(uid)} <= told | gone


@pytest.mark.parametrize("flags", spread(2, [0, 100, 4]))
def test_no_step_of_a_large_change_takes_more_work_than_others(flags: int) -> None:
    keywords = frozenset(f"$k{number}" for number in range(flags))
    messages = [Message(uid, bytes(16), 2, keywords, 0, 10, bytes(32), Dot("dc1.a", 2), uid) for uid in range(1, 5001)]
    changes = {
        "come": ViewChange(b"m", 2, 5001, tuple(messages)),
        "lose their flags": ViewChange(b"m", 3, 5001, tuple(one._replace(flags=frozenset()) for one in messages)),
        "get them again": ViewChange(b"m", 4, 5001, tuple(messages)),
        "go": ViewChange(b"m", 5, 5001, expunged=tuple(range(1, 5001))),
    }
    view = view_of({})
    with view.subscribe() as subscription:
        for what, change in changes.items():
            pauses = 0
            for _ in view.apply_in_steps(change):
                pauses += 1
                assert sum(map(len, subscription.take())) <= STEP_WORK // (1 + flags) + 1, what
            assert pauses >= 5000 * (1 + flags) // (STEP_WORK + 1 + flags) - 1, what
            subscription.take()
    assert (len(view.messages), view.by_flag) == (0, {})
