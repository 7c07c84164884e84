from __future__ import annotations

import logging
from pathlib import Path

import pytest

from replicator.certificates import Certificates
from replicator.cli.processes.node_process import OneLineFormatter
from replicator.config import Address, PeerConfig
from replicator.streams import Tls
from tests.cli.conftest import Invoke


def test_event_is_logged_in_one_line() -> None:
    record = logging.LogRecord(
        "door", logging.INFO, __file__, 1, "from %s", ("a\r\n2026-01-01 b\x1b[31m\x9bc ü",), None
    )
    assert OneLineFormatter("%(name)s: %(message)s").format(record) == (
        "door: from a\\r\\n2026-01-01 b\\x1b[31m\\x9bc ü"
    )


def test_unusable_passwd_file_is_a_configuration_error(tmp_path: Path, invoke: Invoke) -> None:
    config = tmp_path / "dc1.toml"
    config.write_text('[node]\nid = "dc1"\n[users]\npasswd_file = "."\n')
    result = invoke("node", "--config", config)
    assert (result.exit_code, f"{config}:4: passwd_file: " in result.stderr) == (2, True), result.output


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_unreachable_peer_is_reported_with_the_reason(host: str) -> None:
    with pytest.raises(OSError, match=r"^Connection refused$"):
        await Tls(Certificates(None)).dial(PeerConfig("dc2", Address(host, 1)))
