"""What nodes do every few seconds or hours they do in fractions of a second: a simulation lasts for some seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicator import objects
from replicator.replication import collecting, expiring, offering, settling


@contextmanager
def hurried() -> Iterator[None]:
    """Checkpoints, what nodes say of what they have settled, and what they forget of expunged mail.

    Objects are not synced: they lose no power.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "LOOK_EVERY_S", 0.3)
        patch.setattr(collecting, "ROUND_EVERY_S", 1.0)
        patch.setattr(collecting, "LONGEST_WAIT_S", 0.5)
        patch.setattr(expiring, "LEAST_S", 1.0)
        patch.setattr(expiring, "FOLLOWED", 1e15)
        patch.setattr(settling, "SAY_EVERY_S", 1.0)
        patch.setattr(offering, "OFFERED_BYTES", 160)
        patch.setattr(offering, "HELD_S", 1.0)
        patch.setattr(offering, "LOOK_EVERY_S", 0.2)
        patch.setattr(objects, "_sync", _sync_nothing)
        yield


def _sync_nothing(*_paths: Path) -> None:
    return
