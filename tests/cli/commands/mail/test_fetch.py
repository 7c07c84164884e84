from __future__ import annotations

import os
import pty
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import trio

from replicator.mail.mailstore import NewMessage
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode

MAIL = b"Subject: \xff\r\n\r\n\x00lone CR \r, lone LF \n" + b"x" * 200_000


@pytest.fixture
def node(served: ServedNode) -> ServedNode:
    async def fill() -> None:
        folder = await served.mail.create_folder("alice", "Größe/[1]")
        for body in (b"other", MAIL):
            await served.mail.save(folder, NewMessage(body))

    trio.from_thread.run(fill, trio_token=served.token)
    return served


def test_mail_is_printed_byte_for_byte(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("fetch", "Alice", "Größe/[1]", 2, "--url", node.url)
    assert (result.exit_code, result.stderr, result.stdout_bytes) == (0, "", MAIL)


def test_mail_that_cannot_be_read_is_an_error(node: ServedNode, invoke: Invoke) -> None:
    message = node.messages("alice", "Größe/[1]")[0]
    trio.from_thread.run(node.mail.lose_body, message, trio_token=node.token)
    result = invoke("fetch", "alice", "Größe/[1]", 1, "--url", node.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the mail cannot be read to its end: " in result.stderr


def test_terminal_obeys_no_mail(node: ServedNode) -> None:
    async def save() -> None:
        folder = await node.mail.folder("alice", "INBOX")
        await node.mail.save(folder, NewMessage("Subject:\tÜ\x1b]0;title\x07 \x9b1m\u202e\r\n\r\nend\r\n".encode()))

    trio.from_thread.run(save, trio_token=node.token)
    near, far = pty.openpty()
    command = [sys.executable, "-m", "replicator", "fetch", "alice", "INBOX", "1", "--url", node.url]
    with os.fdopen(near, "rb", buffering=0) as terminal:
        subprocess.run(command, stdout=far, check=True, timeout=60)
        assert terminal.read(1000).decode() == "Subject:\tÜ?]0;title? ?1m?\r\n\r\nend\r\n"  # CR is the terminal's
        os.close(far)


def test_mail_that_is_expunged_while_it_is_asked_for_is_an_error(invoke: Invoke) -> None:
    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"\xc0")  # nil: no mail

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        result = invoke("fetch", "alice", "INBOX", "1", "--url", f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has no mail with the UID 1 any more" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["alice", "Größe/[1]", "3"], 1, "alice's Größe/[1] has no mail with the UID 3"),
        (["alice", "Nowhere", "1"], 1, "Nowhere"),
        (["eve", "INBOX", "1"], 1, "there is no user 'eve'"),
        (["alice", "INBOX", "0"], 2, "0 is not in the range"),
        (["alice", "", "1"], 2, "must not be empty"),
    ],
)
def test_errors(node: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("fetch", *arguments, "--url", node.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr
