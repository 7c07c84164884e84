"""Names that others have chosen, as a terminal gets them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicator.mail.mailstore import NewMessage
from replicator.runtime.sessions import Facts
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode

TURNED = "fdp\u202e.exe"  # shown as `fdpexe.`
MESSAGE_ID = b"Message-ID: <\x1b[1m\xc2\x9b1mx@y>\r\n\r\nbody"


@pytest.fixture
def folder(served: ServedNode) -> str:
    async def save() -> None:
        folder = await served.mail.create_folder("alice", TURNED)
        await served.mail.save(folder, NewMessage(MESSAGE_ID, frozenset()))

    trio.from_thread.run(save, trio_token=served.token)
    return TURNED


@pytest.fixture
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ("mailbox", "show", "alice", TURNED),
        ("log", "show", "alice"),
        ("explain", "alice", TURNED, "1"),
        ("export", "alice", "--to", "mbox:out"),
        ("mailbox", "list", "alice"),
        ("mailbox", "delete", "alice", TURNED, "--yes"),
    ],
)
@pytest.mark.usefixtures("in_empty_directory")
def test_terminal_obeys_no_name(served: ServedNode, folder: str, invoke: Invoke, command: tuple[str, ...]) -> None:
    told = invoke(*command, "--url", served.url)
    assert (told.exit_code, told.stderr) == (0, "")
    assert folder.replace("\u202e", "?") in told.stdout
    assert all(line.isprintable() for line in told.stdout.splitlines())


def test_question_before_a_deletion_has_no_codes(served: ServedNode, folder: str, invoke: Invoke) -> None:
    told = invoke("mailbox", "delete", "alice", folder, "--url", served.url)
    assert told.exit_code == 1
    assert folder.replace("\u202e", "?") in told.stderr
    assert "\u202e" not in told.stderr


@pytest.mark.parametrize("command", ["who", "kick"])
def test_sessions_are_shown_without_codes(served: ServedNode, invoke: Invoke, command: str) -> None:
    facts = Facts("eve\u202e", "X\x9b1m", 0, f"{TURNED}\udc80", tls=True)
    trio.from_thread.run(served.sessions.open, facts, "192.0.2.9", trio_token=served.token)
    told = invoke(command, "--address", "192.0.2.9", "--url", served.url)
    assert (told.exit_code, told.stderr) == (0, "")
    assert "eve?" in told.stdout
    assert all(line.isprintable() for line in told.stdout.splitlines())


def test_status_obeys_no_reason_of_a_peer(served: ServedNode, invoke: Invoke) -> None:
    served.report.error = "[bold]refused[/bold] \x9b1m\u202etxt"
    told = invoke("status", "--url", served.url)
    assert "[bold]refused[/bold] ?1m?txt" in " ".join(told.stdout.split())
    assert all(line.isprintable() for line in told.stdout.splitlines())
