"""For all tests: what hypothesis tries is right or wrong, however busy the machine is; reports are text of UTF-8."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

os.environ.pop("COLUMNS", None)  # of a worker, who has no terminal


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was logged may hold lone surrogates, which a worker cannot send to the process that reports."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
