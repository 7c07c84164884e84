"""Parts of nodes that do nothing, so that what differs stays so while a test looks at it."""

import pytest
import trio


async def never(*_arguments: object) -> None:
    await trio.sleep_forever()


def stop_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node ships entries from now on."""
    monkeypatch.setattr("replicator.replication.log.sender.Sender._send", never)


def leave_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node joins or takes over branches that it has found by itself."""
    for what in ("_work", "_catch_up"):
        monkeypatch.setattr(f"replicator.replication.convergence.fork_scheduler.ForkScheduler.{what}", never)
