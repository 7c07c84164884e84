from __future__ import annotations

import logging

from replicator.cli.node import OneLineFormatter


def test_event_is_one_line_whatever_a_peer_sends() -> None:
    record = logging.LogRecord(
        "door", logging.INFO, __file__, 1, "from %s", ("a\r\n2026-01-01 b\x1b[31m\x9bc ü",), None
    )
    assert OneLineFormatter("%(name)s: %(message)s").format(record) == (
        "door: from a\\r\\n2026-01-01 b\\x1b[31m\\x9bc ü"
    )
