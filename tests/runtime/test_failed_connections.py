"""What an operator is told of connections that could not be made."""

from __future__ import annotations

import errno
import socket

import pytest
import trio

from replicator.runtime.failed_connections import reason_of


def failed(*attempts: OSError) -> OSError:
    """Return the error of trio when all attempts have failed."""
    error = OSError("all attempts to connect to here.example:1 failed")
    error.__cause__ = attempts[0] if len(attempts) == 1 else ExceptionGroup("attempts", attempts)
    return error


REFUSED = OSError(errno.ECONNREFUSED, "in other words")
UNREACHABLE = OSError(errno.ENETUNREACH, "in other words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (failed(REFUSED), "Connection refused"),
        (failed(REFUSED, UNREACHABLE, REFUSED), "Connection refused; Network is unreachable"),
        (REFUSED, "Connection refused"),
        (OSError("without a number"), "without a number"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
def test_reasons_are_those_of_the_system(error: OSError | UnicodeError, reason: str) -> None:
    assert reason_of(error) == reason


async def test_trio_keeps_the_reasons_where_they_are_looked_for() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))  # nobody listens there
        with pytest.raises(OSError, match="all attempts") as caught:
            await trio.open_tcp_stream("127.0.0.1", taken.getsockname()[1])
    assert reason_of(caught.value) == "Connection refused"
