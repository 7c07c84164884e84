"""When users are synced: in rounds, after changes, failures and repeats, and while their Dovecot is away."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.config import Address
from replicator.dsync.pushes import pusher
from replicator.dsync.pushes.dovecot import Dovecot
from replicator.dsync.pushes.gate import PAUSE_FIRST_S, PAUSE_MOST_S, Gate
from replicator.dsync.pushes.pusher import AT_ONCE, REPEATS_MOST, Pusher, PushServices
from replicator.dsync.pushes.schedule import GATHER_S, RETRY_FIRST_S, RETRY_MOST_S, Look, Schedule
from replicator.dsync.rules.tree import INBOX
from replicator.dsync.users import Syncing
from replicator.dsync.wire.items import MailboxState
from replicator.errors import MailError, OtherClusterError, UnavailableError
from replicator.mail.mailstore import NewMessage
from tests.dsync.dovecot import needs_dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.pushed import config_of, listening_dovecot, no_tls, pusher_of, remote, running, until
from tests.dsync.sides import USER
from tests.one_node import HookedMail, Names, one_node

NOWHERE = Address("127.0.0.1", 1)
ROUND_S = 300.0
HOUR_S = 3600.0


@dataclass
class Directory:
    """No users; `asked` tells when somebody has asked for which, each of which takes `takes_s`, or fails."""

    errors: dict[str, MailError] = field(default_factory=dict)
    takes_s: float = 0.0
    asked: dict[str, list[float]] = field(default_factory=dict)

    async def ask(self, name: str) -> str | None:
        self.asked.setdefault(name, []).append(trio.current_time())
        await trio.sleep(self.takes_s)
        if name in self.errors:
            raise self.errors[name]
        return None

    def name_meant(self, name: str) -> str:
        return name


@asynccontextmanager
async def node_of(directory: Path, users: list[str]) -> AsyncIterator[HookedMail]:
    async with one_node(directory) as mail:
        for user in users:
            await mail.folder(user, "INBOX")
        yield mail


async def run_for(mail: HookedMail, directory: Directory, seconds: float) -> None:
    config = replace(config_of(NOWHERE), sync_every_s=ROUND_S)
    with trio.move_on_after(seconds):
        await pusher_of(mail, NOWHERE, users=directory, config=config).run()


async def test_users_who_fail_hold_up_no_round(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher, "DUE_MOST", 3)
    failing, others = [f"a{number}" for number in range(9)], [f"b{number}" for number in range(9)]
    directory = Directory(dict.fromkeys(failing, UnavailableError("the directory is down")))
    async with node_of(tmp_path, failing + others) as mail:
        began = trio.current_time()
        await run_for(mail, directory, ROUND_S / 2)
    assert all(directory.asked[user] == [began] for user in others)
    assert all(len(directory.asked[user]) > 3 for user in failing), "they are tried again meanwhile"


async def test_a_user_of_another_cluster_is_passed_over(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory({USER: OtherClusterError("the mail is in another cluster")})
    async with node_of(tmp_path, [USER]) as mail:
        await run_for(mail, directory, HOUR_S - 1)
    assert len(directory.asked[USER]) == HOUR_S / ROUND_S, "once in a round"
    assert caplog.text == ""


async def test_who_has_changes_waits_for_few_others_of_a_round(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, takes_s, users = 2, 10.0, [f"u{number:02}" for number in range(5 * AT_ONCE)]
    monkeypatch.setattr(pusher, "DUE_MOST", most)
    directory = Directory(takes_s=takes_s)
    async with node_of(tmp_path, users) as mail, trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(run_for, mail, directory, ROUND_S / 2)
        await trio.sleep(1.0)
        await mail.save(await mail.folder(users[-1], "INBOX"), NewMessage(b"Subject: 1\r\n\r\n"))
    assert directory.asked[users[-1]][0] == began + takes_s
    assert {*directory.asked} == {*users}


@pytest.mark.parametrize("number", [1, AT_ONCE])
async def test_a_dovecot_that_is_away_is_tried_more_and_more_seldom(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, number: int
) -> None:
    tried: dict[float, int] = {}

    async def password() -> bytes:
        await trio.lowlevel.checkpoint()
        tried[trio.current_time()] = tried.get(trio.current_time(), 0) + 1
        assert len(tried) < 100
        assert tried[trio.current_time()] <= number, "there is no pause"
        raise OSError("the file cannot be read")

    users = [f"u{number}" for number in range(number)]
    async with node_of(tmp_path, users) as mail:
        services = PushServices(mail, Names(*users), lambda _: MemoryReplica(), "zz-test", Syncing())
        with trio.move_on_after(600.0):
            await Pusher(config_of(NOWHERE), Dovecot(NOWHERE, password, no_tls), services).run()
    times = [*tried]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses[-1] == PAUSE_MOST_S


async def test_pauses_are_short_again_after_a_connection(autojump_clock: trio.testing.MockClock) -> None:
    gate = Gate("somewhere")
    for _ in range(3):
        gate.close("it is away")
        await gate.passed()
    gate.open()
    gate.close("it is away again")
    began = trio.current_time()
    await gate.passed()
    assert trio.current_time() - began == PAUSE_FIRST_S


class Tangled(MemoryReplica):
    """A replica that remembers a state by which it can never tell what has changed."""

    async def states(self, _peer: str, /) -> list[MailboxState]:
        await trio.lowlevel.checkpoint()
        return [MailboxState(box.mailbox_id, box.uidvalidity, 1, 1) for box in self.boxes.values()]


async def never(_common_uid: int, _common_modseq: int, /) -> bool:
    await trio.lowlevel.checkpoint()
    return False


@needs_dovecot
async def test_syncs_that_are_never_done_are_repeated_a_few_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Tangled()
    monkeypatch.setattr(replica.create(INBOX, b"\x0a" * 16), "can_tell_since", never)
    with listening_dovecot() as (_, address):
        replica.note_full_sync(str(address))
        async with node_of(tmp_path, [USER]) as mail:
            services = PushServices(mail, Names(USER), lambda _: replica, "zz-test", Syncing())
            async with running(Pusher(config_of(address), remote(address), services)):

                async def is_given_up() -> bool:
                    await trio.sleep(0.01)
                    return "result=failed" in caplog.text

                await until(is_given_up)
    assert f'reason="{REPEATS_MOST + 1} syncs in a row were to be repeated"' in caplog.text


def test_changes_gather_and_failures_wait_longer_each_time() -> None:
    schedule = Schedule()
    schedule.changed("a", 10.0)
    schedule.changed("a", 10.4)
    schedule.changed("b", 10.1)
    assert schedule.next_at() == 10.0 + GATHER_S
    assert schedule.take(10.4) is None
    assert [schedule.take(11.0) for _ in range(3)] == [("a", Look.CHANGED), ("b", Look.CHANGED), None]
    waits = list[float]()
    for _ in range(12):
        schedule.failed("a", Look.FULL, 0.0)
        schedule.changed("a", 0.0)
        at = schedule.next_at()
        assert at is not None
        waits.append(at)
        assert schedule.take(at) == ("a", Look.FULL), "what is owed stays owed"
    assert waits[:3] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert waits[-1] == RETRY_MOST_S
    schedule.succeeded("a")
    schedule.changed("a", 0.0)
    assert schedule.next_at() == GATHER_S


def test_a_schedule_counts_who_is_owed_a_sync_and_whose_turn_it_is() -> None:
    schedule = Schedule()
    assert (len(schedule), schedule.due(0.0)) == (0, 0)
    for user, at in (("a", 1.0), ("b", 2.0), ("c", 2.0), ("d", 3.0)):
        schedule.owe(user, Look.CHANGED, at)
    assert len(schedule) == 4
    assert [schedule.due(now) for now in (0.9, 1.0, 1.9, 2.0, 4.0)] == [0, 1, 1, 3, 4]
    assert schedule.take(4.0) == ("a", Look.CHANGED)
    assert (len(schedule), schedule.due(4.0)) == (3, 3)
