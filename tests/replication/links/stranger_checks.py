"""Commands that strangers send over links, and checks that they have done no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from protocol.commands import Command, EntryCommand, EntryHeader, FetchGuid, Refused, Reply, Save
from protocol.stream_codec import Response
from tests.replication.cluster import EPOCH_MS, Cluster
from tests.replication.stranger import Stranger, header, reasons, text_of, visit

GUID = b"g" * 16


def save(uid: int, guid: bytes = GUID, body: bytes = b"text") -> Save:
    return Save((1,), EPOCH_MS, guid, (), text_of(body), uid)


def as_entry(command: EntryCommand, entry: EntryHeader | None = None) -> EntryCommand:
    return replace(command, entry=entry or header(1))


MAIL = save(1)
TWO = header(1, changes=2)  # the first change of an entry of two


async def assert_unharmed(nodes: Cluster) -> None:
    """Check that dc2 has taken nothing in, and serves."""
    node = nodes["dc2"]
    assert node.store.context == {}
    assert await node.digests() == {}
    assert await node.save("text") == 1
    async with visit(nodes) as stranger:
        assert isinstance(await ask(stranger, FetchGuid(GUID)), Refused)


def assert_logged(caplog: pytest.LogCaptureFixture, error: str | None) -> None:
    """Check that this is the only error that dc2 logged; None: it logged no error."""
    messages = reasons(caplog.records)
    assert len(messages) == (error is not None)
    assert all(error is not None and error in message for message in messages)


async def ask(stranger: Stranger, command: Command) -> Reply:
    await stranger.send(command, "ask")
    with trio.fail_after(60):
        while True:
            match await stranger.next():
                case Response("ask", reply):
                    return reply
                case None:
                    raise AssertionError("the connection ended before the reply")
