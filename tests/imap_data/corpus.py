"""Difficult messages from CPython: the data of its `test_email` package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from replicator.mime.header import Header
from replicator.mime.structure import Part
from tests.effort import IN_CI


def corpus() -> dict[str, bytes]:
    """Return the messages by name; none if this Python lacks its test package (Debian: libpython3-testsuite)."""
    spec = importlib.util.find_spec("test.test_email")
    if spec is None:
        assert not IN_CI, "CI needs CPython's test package"
        return {}
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "data").glob("msg_*.txt"))
    assert len(files) >= 45, "the data of test.test_email is not all there"
    return {file.stem: file.read_bytes() for file in files}


def message_header(body: bytes) -> Header:
    return Header.at(body, 0, len(body))


def check_spans(part: Part, start: int, end: int) -> None:
    """Check that parts lie in order within the part that contains them, and do not overlap."""
    assert start <= part.header.start <= part.header.fields_end <= part.header.end <= part.end <= end
    at = part.header.end
    for child in part.children if part.nested is None else (part.nested,):
        check_spans(child, at, part.end)
        at = child.end
