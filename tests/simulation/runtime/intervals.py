"""Shorter intervals for nodes, fractions of a second instead of seconds or hours: a simulation lasts for seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicator.mail import view
from replicator.replication import timing
from replicator.replication.bodies.upkeep import retention
from replicator.replication.writes import prestage
from replicator.runtime import objects


@contextmanager
def shortened_intervals() -> Iterator[None]:
    """Shorten the intervals of checkpoints, of SETTLED, and of the removal of expunged mail.

    Changes of a few messages are shown in several steps, as large ones are; clients look at what is between them.
    Objects are not synced, since object stores lose no power here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "LOG_TRUNCATION_LOOK_EVERY_S", 0.3)
        patch.setattr(timing, "LOG_TRUNCATION_ROUND_EVERY_S", 1.0)
        patch.setattr(timing, "LOG_TRUNCATION_AGE_MIN_S", 0.5)
        patch.setattr(timing, "RETENTION_LEAST_S", 1.0)
        patch.setattr(retention, "FOLLOWED", 1e15)
        patch.setattr(timing, "SETTLED_SAY_EVERY_S", 1.0)
        patch.setattr(prestage, "OFFERED_BYTES", 160)
        patch.setattr(view, "STEP_WORK", 3)
        patch.setattr(timing, "PRESTAGE_HELD_S", 1.0)
        patch.setattr(timing, "PRESTAGE_LOOK_EVERY_S", 0.2)
        patch.setattr(objects, "_sync", _sync_nothing)
        yield


def _sync_nothing(*_paths: Path) -> None:
    return
