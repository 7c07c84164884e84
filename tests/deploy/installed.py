"""An installed `replicator`, and what is asked of a node that runs by it."""

from __future__ import annotations

import imaplib
import os
import signal
import smtplib
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENDS_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Program:
    """A command, and the whole environment that it gets."""

    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": os.defpath, "LANG": "C.UTF-8"})

    def run(self, *arguments: object, stdin: str = "", cwd: Path | None = None) -> str:
        """Return what a command says. Raises CalledProcessError."""
        words = [*self.command, *map(str, arguments)]
        done = subprocess.run(
            words, cwd=cwd, env=self.environment, input=stdin, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{words} ends with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def node(self, config: Path, cwd: Path) -> Iterator[None]:
        """Run a node, which then has to end in order by SIGTERM. Its log goes beside its configuration."""
        log = config.with_suffix(".log")
        with log.open("wb") as output:
            command = [*self.command, "node", "--config", str(config)]
            process = subprocess.Popen(command, cwd=cwd, env=self.environment, stdout=subprocess.PIPE, stderr=output)
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n", log.read_text("utf-8")
                yield
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_WITHIN_S) == 0, log.read_text("utf-8")
            finally:
                process.kill()


def deliver(port: int, user: str, subject: str) -> None:
    with smtplib.LMTP("127.0.0.1", port) as mta:
        mta.sendmail("a@example.org", [user], f"Subject: {subject}\r\n\r\nx\r\n".encode())


def subjects(port: int, user: str, password: str, *, tls: bool = False) -> list[str]:
    """Return the subjects of the mail in INBOX."""
    with imaplib.IMAP4("127.0.0.1", port, timeout=60) as client:
        if tls:
            client.starttls()
        client.login(user, password)
        client.select("INBOX")
        _, found = client.fetch("1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
        return [part[1].decode().strip().removeprefix("Subject: ") for part in found if isinstance(part, tuple)]


def wait_for_mail(port: int, user: str, password: str, subject: str, *, tls: bool = False) -> None:
    """Return once a mail is there."""
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    while True:
        try:
            if subject in subjects(port, user, password, tls=tls):
                return
        except (OSError, imaplib.IMAP4.error):
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"no mail {subject!r} at port {port}"
        time.sleep(0.1)
