"""Log-ins at the door: passwords that are missing, and guesses."""

from __future__ import annotations

import logging
from base64 import b64encode

import pytest
import trio
import trio.testing

from replicator.dsync.door.server import DsyncServer, DsyncServices
from replicator.users.attempts.throttle import DELAY_MAX_S, FREE_FAILURES_PAIR
from tests.dsync.memory_replica import MemoryReplica
from tests.one_node import Names


def server(password: bytes) -> DsyncServer:
    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        return password

    return DsyncServer(DsyncServices(Names("u1"), lambda _: MemoryReplica(), read, "zz-test"))


async def log_in(door: DsyncServer, password: bytes) -> tuple[bytes, float]:
    """Log in, and return all that the door answers, and after how many seconds."""
    ours, theirs = trio.testing.memory_stream_pair()
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.serve, theirs)
        await ours.send_all(b"VERSION\tdoveadm-server\t1\t2\nPLAIN\t" + b64encode(b"\0doveadm\0" + password) + b"\n")
        await ours.send_eof()
        answer = b"".join([bytes(piece) async for piece in ours])
    return answer, round(trio.current_time() - begin, 3)


@pytest.mark.parametrize("given", [b"", b"guess"])
async def test_without_a_password_nobody_logs_in(given: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert (await log_in(server(b""), given))[0] == b"-\n-\n"
    assert "the first line of the file `password_file` in [doveadm] is empty" in caplog.text


async def test_guesses_wait(autojump_clock: trio.testing.MockClock) -> None:  # noqa: ARG001
    door = server(b"secret")
    waits = [(await log_in(door, b"guess"))[1] for _ in range(20)]
    assert max(waits[:FREE_FAILURES_PAIR]) < 0.1
    assert sorted(waits) == waits
    assert waits[-1] == DELAY_MAX_S
    assert (await log_in(door, b"secret"))[0] == b"-\n+\n"
    assert (await log_in(door, b"secret"))[1] < 0.1, "who has known the password does not wait"
