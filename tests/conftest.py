"""For all tests: what hypothesis tries is right or wrong, however busy the machine is; reports are text of UTF-8.

Several workers share the tests out by files: what a file sets up, it sets up once.
"""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.effort import IN_CI

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

os.environ.pop("COLUMNS", None)  # of a worker, who has no terminal

for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    # A shell without job control ignores them in what it starts in the background, and children inherit that.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

LONG = ("tests/spark/", "tests/end_to_end/", "tests/simulation/")
"""They begin first, so that no worker is left alone with them."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was logged may hold lone surrogates, which a worker cannot send to the process that reports."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """LONG first, and then in the order of their directories. Who wants a test marked as long names it, but for CI."""
    if not IN_CI and not any("::" in argument for argument in config.args):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=lambda item: [not item.nodeid.startswith(directory) for directory in LONG])


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays, and is not looked through for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than cores: some tests wait for real time."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Called if there are several workers."""
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):
    """A file's tests are one worker's, and so are all of Spark, which share a session."""

    def _split_scope(self, nodeid: str) -> str:
        return LONG[0] if nodeid.startswith(LONG[0]) else nodeid.partition("::")[0]
