"""How a node's process ends when it cannot run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replicator.cli.processes.node_process import ending_in_one_line
from replicator.cli.target import CommandError


def test_a_file_that_may_not_be_used_is_named_with_the_user_who_lacks_the_right() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/srv/dc1/node.db")
    with pytest.raises(CommandError) as caught, ending_in_one_line(Path("dc1.toml"), "the node cannot run"):
        raise denied
    assert caught.value.format_message() == (
        f"dc1.toml: the node cannot run: /srv/dc1/node.db: Permission denied; user {os.geteuid()}, who runs this, needs"
        " the right to use it"
    )
