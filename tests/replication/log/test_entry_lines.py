"""One name finds a change in the logs of all nodes."""

import logging
import re
from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.mail.mailstore import NewMessage
from replicator.replication.log import entry_lines
from tests.replication.cluster import USER, cluster


def events_of(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """Return what happened with the entry, in order."""
    lines = [record.getMessage() for record in caplog.records if record.name == entry_lines.__name__]
    found = [
        re.fullmatch(rf"(.*) entry={re.escape(name)}(?: user=alice mailbox=\w+ modseq=\d+ changes=\d+)?", line)
        for line in lines
    ]
    return [match[1] for match in found if match]


async def test_entry_has_one_name_from_its_delivery_to_each_node_that_shows_it(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, entry_lines.__name__)
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        first = await nodes["dc1"].mail.deliver(USER, NewMessage(b"first"))
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        apart = await nodes["dc2"].mail.deliver(USER, NewMessage(b"at dc2"))
        await nodes["dc1"].save("at dc1")
        nodes.rejoin("dc1")
        await nodes.linked()
        await nodes.converged()
    assert first.entry is not None
    assert apart.entry is not None
    assert events_of(caplog, first.entry) == ["numbered", "took in", "took in"]
    assert events_of(caplog, apart.entry) == ["numbered", "took in", "took in to wait", "merged"]


async def test_nothing_is_told_unless_asked_for(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
    assert not [record for record in caplog.records if record.name == entry_lines.__name__]
