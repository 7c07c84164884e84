"""Stops for parts of nodes, so that differences stay while a test looks at them."""

import pytest
import trio


async def never(*_arguments: object) -> None:
    await trio.sleep_forever()


def stop_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no node ship entries from now on."""
    monkeypatch.setattr("replicator.replication.log.sender.Sender._send", never)


def leave_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no node join or take over branches that it has found by itself."""
    for method in ("_work", "_catch_up"):
        monkeypatch.setattr(f"replicator.replication.convergence.fork_scheduler.ForkScheduler.{method}", never)
