"""What test modules share is in modules that are no tests: whoever runs or moves a test takes nothing else along."""

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
