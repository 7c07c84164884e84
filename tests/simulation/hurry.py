"""Shorten nodes' intervals of seconds or hours to fractions of a second: a simulation lasts for some seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicator import objects
from replicator.replication.bodies import retention
from replicator.replication.checkpoints import log_truncation
from replicator.replication.log import settled
from replicator.replication.writes import prestage


@contextmanager
def hurried() -> Iterator[None]:
    """Hurry checkpoints, statements about settled entries, and the removal of expunged mail.

    Objects are not synced: they lose no power.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_truncation, "LOOK_EVERY_S", 0.3)
        patch.setattr(log_truncation, "ROUND_EVERY_S", 1.0)
        patch.setattr(log_truncation, "LONGEST_WAIT_S", 0.5)
        patch.setattr(retention, "LEAST_S", 1.0)
        patch.setattr(retention, "FOLLOWED", 1e15)
        patch.setattr(settled, "SAY_EVERY_S", 1.0)
        patch.setattr(prestage, "OFFERED_BYTES", 160)
        patch.setattr(prestage, "HELD_S", 1.0)
        patch.setattr(prestage, "LOOK_EVERY_S", 0.2)
        patch.setattr(objects, "_sync", _sync_nothing)
        yield


def _sync_nothing(*_paths: Path) -> None:
    return
