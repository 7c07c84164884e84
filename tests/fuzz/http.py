"""Input of an HTTP client, to a real server with a real node's mail, in virtual time."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.users import UserDirectory
from tests.fuzz.target import Target, pieces_of
from tests.http.conversation import conversation
from tests.http.fixed_jobs import FixedJobs
from tests.http.fixed_report import FixedReport
from tests.one_node import Names, one_node

_STATUS = re.compile(rb"^HTTP/1.1 [0-9]{3}", re.MULTILINE)

HOST = b"HTTP/1.1\r\nHost: localhost\r\n"


def check(data: bytes) -> None:
    """Send the octets whole and in pieces, and then nothing more: the server answers the same, and closes.

    What h11 says of a wrong request depends on the pieces, so only the status of those is compared.
    """
    whole, pieces = pieces_of(data)
    answers = answers_to([whole])
    assert _STATUS.findall(answers_to(pieces)) == _STATUS.findall(answers)
    assert not answers or answers.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500 " not in answers


def answers_to(pieces: list[bytes]) -> bytes:
    return trio.run(_conversation, pieces, clock=trio.testing.MockClock(autojump_threshold=0))


async def _conversation(pieces: list[bytes]) -> bytes:
    with TemporaryDirectory(prefix="fuzz-") as directory:
        async with one_node(Path(directory)) as mail:
            report, jobs = FixedReport(), FixedJobs().tasks()
            services = HttpServices(
                sid="dc1",
                mail=mail,
                status=report,
                users=Names("alice"),
                registry=CollectorRegistry(),
                masters=report,
                checkpoints=report,
                tasks=jobs,
                stories=mail.stories(),
                tracer=mail.tracer(),
                oversight=UserDirectory(Path(directory) / "users.passwd"),
                message_ids=MESSAGE_IDS,
                clock_ms=lambda: 784_111_777_000,
            )
            async with conversation(HttpServer(services)) as talk:
                assert isinstance(talk.stream, trio.StapledStream)
                for piece in pieces:
                    await talk.stream.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked()
                await talk.stream.send_eof()
                return await talk.rest()


TARGET = Target(
    "http",
    check,
    seeds=(
        b"\x3fGET /healthz " + HOST + b"\r\nGET /api/v1/status " + HOST + b"\r\n",
        b"\x1fPUT /api/v1/users/alice/folders/Archive%2F2024 " + HOST + b"\r\n",
        b"\x1fPOST /api/v1/users/alice/messages?mailbox=INBOX&flags=%5CSeen "
        + HOST
        + b"Content-Type: message/rfc822\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"\x3fPOST /api/v1/users/alice/messages "
        + HOST
        + b"Content-Type: message/rfc822\r\nContent-Length: 3\r\n\r\na\r\n",
        b"\x3fPOST /api/v1/tasks/check "
        + HOST
        + b'Content-Type: application/json\r\nContent-Length: 11\r\n\r\n{"rate": 9}',
    ),
    words=(
        *(
            b"\r\n",
            b"\r\n\r\n",
            b" ",
            b": ",
            b"/",
            b"?",
            b"&",
            b"=",
            b"%",
            b"%2F",
            b"%ff",
            b"%00",
            b"#",
            b"{",
            b"}",
            b"[",
            b'"',
            b"\xff",
            b"\0",
        ),
        *(
            b"GET ",
            b"POST ",
            b"PUT ",
            b"HEAD ",
            b"CONNECT ",
            b"/api/v1/",
            b"users/alice/",
            b"messages",
            b"folders/",
            b"master",
            b"tasks/",
        ),
        *(
            b"status",
            b"mailboxes",
            b"after=",
            b"flags=",
            b"received_ms=",
            b"mailbox=",
            b"rate",
            b"http://[",
            b"http://localhost",
            HOST,
        ),
        *(
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Type: application/json\r\n",
            b"Expect: 100-continue\r\n",
        ),
        *(b"Connection: close\r\n", b"9" * 30, b"9" * 4400, b"1e999", b"\\ud800", b"[" * 1100, b'{"a":' * 400),
    ),
    calls=60_000,  # of which starting and ending two nodes takes 50,000
)
