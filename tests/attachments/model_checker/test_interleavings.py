"""Every order of steps, every death: what is held can be read, and what nobody holds goes.

ATTACHMENTS_LARGE=1 tries larger scenarios, too, and lets all actors die, which takes two minutes; else one may.
"""

from __future__ import annotations

import os

import pytest

from tests.attachments.helpers import PLACE, TEXT
from tests.attachments.model_checker.actors import LARGE, SCENARIOS
from tests.attachments.model_checker.explorer import Explorer

IS_LARGE = "ATTACHMENTS_LARGE" in os.environ
DEATHS = 3 if IS_LARGE else 1
TRIED = SCENARIOS | LARGE if IS_LARGE else SCENARIOS


@pytest.mark.parametrize("replaces_empty", [True, False], ids=["posix", "strict"])
@pytest.mark.parametrize("name", TRIED)
def test_every_order(name: str, *, replaces_empty: bool) -> None:
    files, actors = TRIED[name]()
    files = files.copy()
    files.replaces_empty = replaces_empty
    assert Explorer(actors, PLACE, TEXT, DEATHS).explore(files) > len(actors)
