"""IMAP sessions are never misled, across nodes, cuts and merges (design sections 3 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicator.config import UidConflict
from tests.effort import examples
from tests.replication.sessions.conversation import Step
from tests.replication.sessions.world import STEPS, run


@settings(
    max_examples=examples(8, 100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(sessions=st.integers(2, 6), uid=st.sampled_from(UidConflict), steps=STEPS)
def test_sessions_are_never_misled(tmp_path: Path, sessions: int, uid: UidConflict, steps: Sequence[Step]) -> None:
    with TemporaryDirectory(dir=tmp_path) as directory:
        run(Path(directory), sessions, uid, steps)
