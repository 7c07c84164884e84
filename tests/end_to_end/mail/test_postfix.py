"""A node behind a real Postfix, configured as docs/operations.md says."""

from __future__ import annotations

import imaplib
import os
import shutil
import smtplib
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from replicator.config import Address, Config, ListenConfig, LmtpConfig, WorkersConfig, default_config
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.pages import block, put

POSTFIX = shutil.which("postfix", path="/usr/sbin:/usr/bin")
MASTER = Path("/usr/share/postfix/master.cf.dist")
pytestmark = [
    pytest.mark.skipif(POSTFIX is None or not MASTER.exists(), reason="Postfix is missing: apt-get install postfix"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Postfix needs root"),
]

PATIENCE_S = 120.0


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a directory that Postfix's own users can enter, other than those of pytest."""
    with TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def main_here(home: Path) -> str:
    """Return what a private Postfix needs besides the page's configuration."""
    return f"""
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
maillog_file = {home}/maillog
maillog_file_prefixes = {home}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = mx.example.net
mydestination =
alias_maps =
mynetworks = 192.0.2.1
"""


def master_here(smtp: Address) -> str:
    """Return Debian's services, without chroot, with SMTP at this address."""
    lines = []
    for line in MASTER.read_text("utf-8").splitlines():
        words = line.split()
        if len(words) >= 8 and not line.startswith(("#", " ")):
            words[4] = "n"
            words[0] = str(smtp) if words[:2] == ["smtp", "inet"] else words[0]
        lines.append(" ".join(words) if not line.startswith(" ") else line)
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def postfix(home: Path, lmtp: Address, socketmap: Address) -> AsyncIterator[Address]:
    """Run Postfix before the node until the block ends."""
    smtp = Address("127.0.0.1", *free_ports(1))
    page = put(block("operations.md", "Delivery"), ("127.0.0.1:1024", str(lmtp)), ("127.0.0.1:1025", str(socketmap)))
    (home / "main.cf").write_text(page + main_here(home), "utf-8")
    (home / "master.cf").write_text(master_here(smtp), "utf-8")
    (home / "queue").mkdir()
    (home / "data").mkdir()
    shutil.chown(home / "data", "postfix")
    assert POSTFIX is not None
    told = await trio.run_process(["postconf", "-c", home, "-n"], capture_stdout=True, capture_stderr=True)
    assert told.stderr == b""  # it warns of parameters that it does not know
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, [POSTFIX, "-c", str(home), "start-fg"], check=False, stderr=subprocess.DEVNULL)
        await nursery.start(run)
        try:
            while not await listens(smtp):  # noqa: ASYNC110 - of Postfix
                await trio.sleep(0.05)
            yield smtp
        finally:
            stop = partial(subprocess.run, [POSTFIX, "-c", home, "stop"], check=True, stderr=subprocess.DEVNULL)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(stop)


async def listens(address: Address) -> bool:
    try:
        await (await trio.open_tcp_stream(*address)).aclose()
    except OSError:
        return False
    return True


def send(smtp: Address, recipient: str) -> tuple[int, bytes]:
    """Send a mail as a stranger does. Return the answer to the recipient, or to the message."""
    with smtplib.SMTP(*smtp, local_hostname="sender.example", timeout=PATIENCE_S) as client:
        client.ehlo()
        client.mail("a@example.net")
        answer = client.rcpt(recipient)
        if answer[0] != 250:
            return answer
        return client.data(b"Subject: by Postfix\r\n\r\nx\r\n")


def subjects(config: Config) -> bytes:
    assert config.listen.imap is not None
    with imaplib.IMAP4(*config.listen.imap, timeout=PATIENCE_S) as client:
        client.login("alice", "secret")
        client.select("INBOX")
        return str(client.fetch("1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])")).encode()


EXPECTED = {
    "nobody@example.org": 550,
    "alice@elsewhere.example": 454,
    "alice@example.org": 250,
    "Alice+detail@example.org": 250,
    "info@example.org": 250,
}


@pytest.mark.parametrize("doors", [0, 1])
async def test_postfix_delivers_to_users_and_aliases_and_refuses_all_others(
    tmp_path: Path, home: Path, doors: int
) -> None:
    (tmp_path / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    (tmp_path / "aliases").write_text("info@example.org alice\n", "utf-8")
    imap, lmtp, socketmap = (Address("127.0.0.1", port) for port in free_ports(3))
    listen = ListenConfig(imap=imap, lmtp=lmtp, socketmap=socketmap)
    config = replace(
        default_config("dc1", tmp_path, listen=listen),
        lmtp=LmtpConfig(tmp_path / "aliases"),
        workers=WorkersConfig(doors),
    )
    accepted = sum(code == 250 for code in EXPECTED.values())
    with trio.fail_after(PATIENCE_S):
        async with postfix(home, lmtp, socketmap) as smtp:
            # While no node runs, mail is neither taken nor refused for good.
            assert (await trio.to_thread.run_sync(send, smtp, "alice@example.org"))[0] == 451
            async with running([config]):
                codes = {one: (await trio.to_thread.run_sync(send, smtp, one))[0] for one in EXPECTED}
                while subjects_in(await trio.to_thread.run_sync(subjects, config)) < accepted:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                values = [await query(home, socketmap, key) for key in ("info@example.org", "nobody@example.org")]
    assert codes == EXPECTED
    assert values == [(0, b"info@example.org\n"), (1, b"")]


def subjects_in(answer: bytes) -> int:
    return answer.count(b"Subject: by Postfix")


async def query(home: Path, socketmap: Address, key: str) -> tuple[int, bytes]:
    """Ask by Postfix's own command. Return its exit code and what it prints."""
    table = f"socketmap:inet:{socketmap}:recipient"
    told = await trio.run_process(["postmap", "-c", home, "-q", key, table], capture_stdout=True, check=False)
    return told.returncode, told.stdout
