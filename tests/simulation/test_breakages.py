import pytest

from tests.simulation.breakages import BREAKAGES, ROOT, Breakage


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_is_of_the_program_as_it_is(breakage: Breakage) -> None:
    assert (ROOT / breakage.path).read_text().count(breakage.right) == 1
    scenarios = (ROOT / "tests/simulation/test_scenarios.py").read_text()
    assert f"def {breakage.scenario}(" in scenarios or not breakage.scenario
