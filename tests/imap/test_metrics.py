from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from replicator.imap.services import ImapServices
from replicator.runtime.metrics import ImapMetrics, LoopMetrics
from replicator.runtime.process import loop_watch
from replicator.runtime.process.loop_watch import LoopWatch
from tests.imap.client import connected

PREFIX = "replicator_imap"


async def test_metrics_count_connections_logins_and_commands(served: ImapServices) -> None:
    registry = CollectorRegistry()
    served = replace(served, metrics=ImapMetrics(registry))

    def counted(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"{PREFIX}_{name}", labels)

    async with connected(served) as client:
        assert counted("connections") == 1
        await client.run("LOGIN alice wrong")
        assert counted("sessions") == 0
        await client.log_in("alice", "INBOX")
        assert counted("sessions") == 1
        await client.run("SELECT nowhere")
        await client.run("fetch 1:* FLAGS")
        await client.run("unknown command")
    assert counted("connections") == counted("sessions") == 0
    assert [counted("logins_total", result=result) for result in ("ok", "failed")] == [1, 1]
    assert counted("commands_total", command="LOGIN", condition="NO") == 1
    assert counted("commands_total", command="SELECT", condition="OK") == 1
    assert counted("commands_total", command="SELECT", condition="NO") == 1
    [family] = [family for family in registry.collect() if family.name == f"{PREFIX}_commands"]
    commands = {sample.labels["command"] for sample in family.samples}
    assert commands == {"LOGIN", "SELECT", "FETCH"}


async def test_the_watch_of_the_loop_is_told_user_and_command(
    served: ImapServices, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for limit in ("COUNTED_S", "LOGGED_S"):
        monkeypatch.setattr(loop_watch, limit, 0.0)
    monkeypatch.setattr(loop_watch, "LINES_MAX", 100_000)
    with LoopWatch(LoopMetrics()).watching():
        async with connected(served) as client:
            await client.run("ID NIL")
            await client.log_in("alice", "INBOX")
            await client.run("UID SEARCH ALL")
    said = {record.message.partition(" seconds=")[0] for record in caplog.records}
    held = "the event loop was held: imap="
    assert {f"{held}ID", f"{held}LOGIN", f"{held}SELECT who=alice", f'{held}"UID SEARCH" who=alice'} <= said
