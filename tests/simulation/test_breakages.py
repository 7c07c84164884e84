import pytest

from tests.simulation.breakages import BREAKAGES, ROOT, SCENARIOS, Breakage


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_breakage_matches_the_program_exactly_once(breakage: Breakage) -> None:
    assert (ROOT / breakage.path).read_text().count(breakage.right) == 1
    scenarios = "".join((ROOT / file).read_text() for file in SCENARIOS)
    assert f"def {breakage.scenario}(" in scenarios or not breakage.scenario
