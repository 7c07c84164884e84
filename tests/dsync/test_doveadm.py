"""The beginning of a connection: password, command, and what else there may be."""

from __future__ import annotations

import ssl
from base64 import b64encode
from contextlib import suppress

import pytest

from replicator.dsync.door.doveadm import LINE_BYTES_MAX, Attempt, Command, DoveadmMachine, Refusal

PASSWORD = b"correct horse"
VERSION = b"VERSION\tdoveadm-server\t1\t2\n"
COMMAND = b"\tu1\tdsync-server\t-uu1\t-U\n"


def plain(user: bytes, password: bytes) -> bytes:
    return b"PLAIN\t" + b64encode(b"\0" + user + b"\0" + password) + b"\n"


LOGIN = plain(b"doveadm", PASSWORD)


def run(*pieces: bytes) -> tuple[DoveadmMachine, Command | None, bytes]:
    machine, command, output = DoveadmMachine(), None, b""
    for piece in pieces:
        machine.receive(piece)
        while command is None and (found := machine.advance()) is not None:
            match found:
                case Command():
                    command = found
                case Attempt() if found.fits(PASSWORD):
                    machine.admit()
                case Attempt():
                    machine.deny("the client's password is wrong")
        output += machine.take_output()
    return machine, command, output


def test_a_sync_begins_wherever_the_bytes_are_cut() -> None:
    wire = VERSION + LOGIN + COMMAND + b"VERSION\tdsync"
    for pieces in ([wire], [wire[at : at + 1] for at in range(len(wire))]):
        machine, command, output = run(*pieces)
        assert command == Command("u1")
        assert output == b"-\n+\n"
        machine.accept()
        assert machine.take_output() == b"\n+\n"
        assert machine.rest == b"VERSION\tdsync"
        assert not machine.closed


@pytest.mark.parametrize(
    "line",
    [
        plain(b"doveadm", b"wrong"),
        plain(b"doveadm", b""),
        plain(b"root", PASSWORD),
        b"PLAIN\t!!\n",
        b"PLAIN\n",
        LOGIN.replace(b"PLAIN", b"LOGIN"),
        b"PLAIN\t" + b64encode(PASSWORD) + b"\n",
        COMMAND,
    ],
)
def test_nobody_begins_without_the_password(line: bytes) -> None:
    machine, command, output = run(VERSION, line, LOGIN, COMMAND)
    assert command is None
    assert output == b"-\n-\n"
    assert machine.closed
    assert machine.refused == "the client's password is wrong"


def test_an_empty_password_fits_nobody() -> None:
    assert not Attempt(b"doveadm", b"").fits(b"")
    assert "horse" not in repr(Attempt(b"doveadm", PASSWORD))


@pytest.mark.parametrize(
    "line", [b"\tu1\tmailbox list\n", b"\t\tdsync-server\n", b"\n", b"\tu1\n", b"\t\xff\tdsync-server\n"]
)
def test_other_commands_are_refused(line: bytes) -> None:
    machine, command, output = run(VERSION + LOGIN + line)
    assert command is None
    assert output == b"-\n+\n\n-USAGE\n"
    assert machine.closed


def test_a_command_can_be_refused() -> None:
    machine, command, _ = run(VERSION + LOGIN + COMMAND)
    assert command is not None
    machine.refuse(Refusal.NO_USER, "there is no such user")
    assert machine.take_output() == b"\n-NOUSER\n"
    assert machine.closed


@pytest.mark.parametrize("begin", [b"", VERSION, VERSION + LOGIN])
def test_long_lines_end_the_connection(begin: bytes) -> None:
    machine, command, _ = run(begin, b"x" * (LINE_BYTES_MAX + 1))
    assert command is None
    assert machine.closed


def test_a_client_that_begins_tls_is_told_from_one_with_a_wrong_password() -> None:
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = sent.read()
    for pieces in ([hello], [hello[:1], hello[1:]], [hello + b"\n"]):
        machine, command, output = run(*pieces)
        assert (command, output, machine.closed) == (None, b"-\n", True)
        assert machine.refused is not None
        assert "the client begins TLS" in machine.refused


def test_other_versions_end_the_connection() -> None:
    machine, _, _ = run(b"VERSION\tdoveadm-server\t2\t0\n")
    assert machine.closed
