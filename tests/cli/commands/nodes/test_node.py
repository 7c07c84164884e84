from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from replicator.config import Address, PeerConfig
from replicator.network.certificates import Certificates
from replicator.network.streams import Tls
from replicator.runtime.logs.lines import OneLineFormatter
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


def test_garbage_of_the_start_is_set_aside_before_the_event_loop_runs(tmp_path: Path) -> None:
    """Looking at it once all listeners accept held the loop for a tenth of a second, with a warning at each start."""
    code = (
        "import gc, sys, trio\n"
        "from pathlib import Path\n"
        "from replicator.cli.processes import node_process\n"
        "from replicator.config import default_config\n"
        "from replicator.runtime.logs.lines import LogSettings\n"
        "trio.run = lambda _: print(gc.get_freeze_count(), len(gc.get_objects()))\n"
        "config, file = default_config('dc1', Path(sys.argv[1])), Path('dc1.toml')\n"
        "node_process.run_process(config, file, LogSettings(), asked=[], new_cluster=False, until_stdin_closes=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    aside, left = map(int, done.stdout.split())
    assert aside > 10_000 > left


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_unreachable_peer_is_reported_with_the_reason(host: str) -> None:
    with pytest.raises(OSError, match=r"^Connection refused$"):
        await Tls(Certificates(None)).dial(PeerConfig("dc2", Address(host, 1)))
