"""Settings for all tests: no deadlines for Hypothesis, default effects of signals, and reports in valid UTF-8.

Workers share the tests out by files, so that fixtures of a file are set up once.
"""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.effort import IN_CI, examples

settings.register_profile("patient", deadline=None, max_examples=examples(25, 100))
settings.load_profile("patient")

os.environ.pop("COLUMNS", None)  # a width of the caller's terminal, which a worker does not have

for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    # A shell without job control ignores these signals in background processes, and their children inherit that.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

LONG = ("tests/spark/", "tests/dsync/histories/", "tests/end_to_end/", "tests/simulation/", "tests/deploy/")
"""Directories of long tests, which begin first so that no worker runs them alone in the end."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in logs, which a worker cannot send to the reporting process."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of LONG first. Leave out tests marked as long, except in CI or if a test is named."""
    if not IN_CI and not any("::" in argument for argument in config.args):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=lambda item: [not item.nodeid.startswith(directory) for directory in LONG])


def pytest_collection_finish() -> None:
    """Exclude the objects of thousands of collected tests from all later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return two workers more than there are cores, because some tests wait for real time."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return the scheduler of a run with several workers."""
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):
    """A scheduler that gives a file to one worker, and all tests of Spark, which share a session, to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return LONG[0] if nodeid.startswith(LONG[0]) else nodeid.partition("::")[0]
