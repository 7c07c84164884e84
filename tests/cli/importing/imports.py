"""Maildirs with UIDs, and imports of them into a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.cli.sources.mail_files import make_maildir, put

UIDVALIDITY = 1_600_000_001
NO_GUIDS: Mapping[int, str] = {}


def numbered(root: Path, uids: list[int], uidnext: int) -> Path:
    """Write a Maildir with these UIDs; the mail `n` has the UID n and was received in second n."""
    make_maildir(root)
    for uid in uids:
        put(root / "cur", f"{uid}:2,S", b"Subject: %d\n\nx\n" % uid, mtime_s=1000 + uid)
    write_list(root, uids, uidnext)
    return root


def write_list(root: Path, uids: list[int], uidnext: int, guids: Mapping[int, str] = NO_GUIDS) -> None:
    """Write the list of UIDs. `guids`: by UID, of mails that have others than the names of their files."""
    lines = "".join(f"{uid} {f'G{guids[uid]} ' if uid in guids else ''}:{uid}\n" for uid in uids)
    put(root, "dovecot-uidlist", f"3 V{UIDVALIDITY} N{uidnext} Gx\n{lines}".encode())


def imported(served: ServedNode, invoke: Invoke, place: Path, *options: object, code: int = 0) -> Any:
    """Import for alice, and return the result."""
    result = invoke("import", "alice", place, *options, "--url", served.url, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def uids(served: ServedNode) -> list[int]:
    return [message.uid for message in served.messages("alice", "INBOX")]
