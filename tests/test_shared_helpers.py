"""Imports between test modules, which are not allowed: shared helpers are in modules of their own."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
_FROM_A_TEST = re.compile(
    r"^\s*(?:from|import) tests(?:\.\w+)*\.test_\w+|^\s*from [\w.]+ import .*\btest_\w+", re.MULTILINE
)


def test_nothing_is_imported_from_a_test_module() -> None:
    found = {
        str(path.relative_to(TESTS)): imports
        for path in TESTS.rglob("*.py")
        if (imports := _FROM_A_TEST.findall(path.read_text("utf-8")))
    }
    assert not found, "move what is shared to a module of the folder that is no test"
