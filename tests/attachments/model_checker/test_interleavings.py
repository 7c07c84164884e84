"""Held attachments stay readable and unheld ones are removed, in every order of steps and with every death.

By default one actor may die. ATTACHMENTS_LARGE=1 adds larger scenarios and lets all actors die; it takes two minutes.
"""

from __future__ import annotations

import os

import pytest

from tests.attachments.helpers import CONTENT, PLACE
from tests.attachments.model_checker.actors import LARGE, SCENARIOS
from tests.attachments.model_checker.explorer import Explorer

IS_LARGE = "ATTACHMENTS_LARGE" in os.environ
DEATHS = 3 if IS_LARGE else 1
TRIED = SCENARIOS | LARGE if IS_LARGE else SCENARIOS


@pytest.mark.parametrize("replaces_empty", [True, False], ids=["posix", "strict"])
@pytest.mark.parametrize("name", TRIED)
def test_invariants_hold_in_every_order_of_steps(name: str, *, replaces_empty: bool) -> None:
    files, actors = TRIED[name]()
    files = files.copy()
    files.replaces_empty = replaces_empty
    assert Explorer(actors, PLACE, CONTENT, DEATHS).explore(files) > len(actors)
