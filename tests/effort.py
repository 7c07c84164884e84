"""How much tests try: `make test` takes minutes, and CI tries all."""

import os

IN_CI = os.environ.get("TESTS_IN_CI") == "1"
"""Set by .ci/run."""


def examples(quick: int, whole: int) -> int:
    """How many examples a test tries: `quick` for whoever waits for them, `whole` in CI."""
    return whole if IN_CI else quick
