"""Tests of the file of seeds that failed."""

from pathlib import Path

import pytest

from tests.simulation.campaign.failing_seeds import FailingSeeds


def test_failed_seed_is_kept_until_it_passes(tmp_path: Path) -> None:
    path = tmp_path / ".soak" / "failing-seeds"
    kept = FailingSeeds(path)
    kept.note(1, has_failed=False)
    assert not path.exists()
    kept.note(7, has_failed=True)
    kept.note(3, has_failed=True)
    kept.note(7, has_failed=True)
    assert path.read_text() == "7\n3\n"
    again = FailingSeeds(path)
    assert again.seeds == [7, 3]
    again.note(7, has_failed=False)
    assert path.read_text() == "3\n"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_line_that_is_no_seed_is_reported_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "failing-seeds"
    path.write_text("7\n\nseven\n")
    with pytest.raises(ValueError, match="line 2"):
        FailingSeeds(path)
