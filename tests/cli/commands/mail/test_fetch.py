from __future__ import annotations

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
