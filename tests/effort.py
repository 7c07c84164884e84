"""Numbers of examples that tests try: few in `make test`, which takes minutes, and all in CI."""

import os

IN_CI = os.environ.get("TESTS_IN_CI") == "1"
"""Set by .ci/run."""


def examples(quick: int, whole: int) -> int:
    """Return how many examples a test tries: `quick`, or in CI `whole`."""
    return whole if IN_CI else quick
