"""IMAP on a large mailbox, beside Dovecot: the same mails and client, one server after the other for each command.

Both servers have opened and listed the mailbox before, so Dovecot's index files and the node's outlines exist. The
floor of a figure is Dovecot's time in the same run. A change is on a node's disk before OK; Dovecot does not sync it.
"""

from __future__ import annotations

import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import ImapClient, MeasurementError
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.dovecot import Dovecot
from benchmarks.clusters.prepared import DATABASE, PREPARED_SEED, Prepared, prepare
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure, quantiles_ms

READER = "reader"
MAIL_BYTES = 4096
TIMES = 3
SELECTS = 20
"""Sessions that select the mailbox at each server: SELECT takes a millisecond, in which a machine has many hiccups."""

RESUMPTIONS = 10
"""Sessions that come back to the mailbox at each server."""

BODIES = 5_000
"""Messages that are fetched whole."""

NEW_SEED = 5  # of mails that come during the run
CHANGES = 10
ACTIVE_MESSAGES = 500
"""Messages in INBOX of each user who works at the same time as others."""

DERIVED_WITHIN_S = 900.0
NO_SLOWER, TWICE = "no slower than Dovecot", "at most twice Dovecot's"


class Server(NamedTuple):
    """One of the two servers that are compared."""

    imap: Callable[[str], ImapClient]
    processes: Callable[[], list[psutil.Process]]


class Command(NamedTuple):
    """A command that is timed in a session which has INBOX selected."""

    name: str
    text: str
    aim: str


def imap(directory: Path, scale: Scale) -> list[Figure]:
    """Measure commands of one session, then idle sessions, then busy ones."""
    directory.mkdir(parents=True)
    directory.chmod(0o755)  # Dovecot runs under another user
    directory.parent.chmod(directory.parent.stat().st_mode | 0o055)
    workers = [f"worker{number:02d}" for number in range(scale.imap_workers)]
    boxes = [(READER, "INBOX", scale.imap_messages), *((user, "INBOX", ACTIVE_MESSAGES) for user in workers)]
    mails = sum(messages for _, _, messages in boxes)
    prepare(Prepared(str(directory / "node"), ["dc1"], boxes, texts=mails, size_bytes=MAIL_BYTES))
    dovecot = Dovecot(_made(directory / "dovecot"))
    texts = MailTexts(MAIL_BYTES, PREPARED_SEED)
    for user, _, messages in boxes:
        dovecot.fill(user, (next(texts) for _ in range(messages)))
    with Cluster(directory / "node", [READER, *workers], size=1, copies=1) as cluster, dovecot:
        node = cluster.nodes[0]
        _wait_for_outlines(node)
        servers = (Server(node.imap, lambda: [psutil.Process(node.pid)]), Server(dovecot.imap, dovecot.processes))
        peer = f"Dovecot {dovecot.version}"
        return [
            *_idle_sessions(servers, workers, scale, peer),  # before much memory has been used and is free again
            *_commands(servers, scale.imap_messages, peer),
            *_busy_sessions(servers, workers, scale, peer),
        ]


def _made(directory: Path) -> Path:
    directory.mkdir()
    directory.chmod(0o755)
    return directory


def _wait_for_outlines(node: Node) -> None:
    """Wait until the node has made what it keeps of each body for listings."""
    deadline = time.monotonic() + DERIVED_WITHIN_S
    with closing(sqlite3.connect(f"file:{node.data / DATABASE}?mode=ro", uri=True)) as database:
        while True:
            missing = "SELECT COUNT(*) FROM content WHERE id > (SELECT COALESCE(MAX(id), 0) FROM outline)"
            if database.execute(missing).fetchone()[0] == 0:
                return
            if time.monotonic() > deadline:
                raise MeasurementError(f"{node.sid} has not made all outlines after {DERIVED_WITHIN_S:.0f} s")
            time.sleep(0.5)


# ---- one session


def _commands(servers: Sequence[Server], messages: int, peer: str) -> list[Figure]:
    needle = f"number {messages // 2}"
    commands = (
        Command("FETCH 1:* (UID FLAGS)", "FETCH 1:* (UID FLAGS)", TWICE),
        Command("FETCH 1:* (ENVELOPE BODYSTRUCTURE)", "FETCH 1:* (ENVELOPE BODYSTRUCTURE)", NO_SLOWER),
        Command(f"FETCH 1:{BODIES} (BODY.PEEK[])", f"FETCH 1:{BODIES} (BODY.PEEK[])", ""),
        Command("SEARCH FLAGGED", "SEARCH FLAGGED", NO_SLOWER),
        Command("SEARCH SUBJECT, one of them found", f'SEARCH SUBJECT "{needle}"', NO_SLOWER),
        Command("SEARCH BODY, some of 256 found", f'SEARCH BODY "{_phrase()}"', NO_SLOWER),
        Command("SORT (DATE)", "SORT (DATE) UTF-8 ALL", NO_SLOWER),
        Command("SORT (SUBJECT)", "SORT (SUBJECT) UTF-8 ALL", NO_SLOWER),
        Command("THREAD REFERENCES", "THREAD REFERENCES UTF-8 ALL", NO_SLOWER),
    )
    for server in servers:
        with server.imap(READER) as session:
            session.command("SELECT INBOX")
            for command in commands:
                session.drain(command.text)
    of = f"of {messages:,} messages"
    rows = [
        _compared(f"SELECT {of}", _selecting(servers), peer, TWICE),
        _compared(f"SELECT {of} with QRESYNC, {CHANGES} changes", _resuming(servers), peer, NO_SLOWER),
    ]
    with ExitStack() as stack:
        sessions = [stack.enter_context(server.imap(READER)) for server in servers]
        for session in sessions:
            session.command("SELECT INBOX")
        for command in commands:
            timed: list[list[float]] = [[], []]
            for _ in range(TIMES):
                for samples, session in zip(timed, sessions, strict=True):
                    samples.append(_seconds(session, command.text))
            rows.append(_compared(f"{command.name} {of}", timed, peer, command.aim))
        for name in ("SORT (SUBJECT)", "SORT (DATE)"):
            timed = _sorting_new_mail(sessions, f"{name} UTF-8 ALL")
            rows.append(_compared(f"{name} {of}, one of them new", timed, peer, NO_SLOWER))
    return rows


def _phrase() -> str:
    """Return words that stand in the first line of one body of the pool, and so in one mail of 256."""
    mail = next(MailTexts(MAIL_BYTES, PREPARED_SEED))
    lines = mail.partition(b"\r\n\r\n")[2].split(b"\r\n")
    return lines[1][:24].decode()


def _selecting(servers: Sequence[Server]) -> list[list[float]]:
    """Return seconds of SELECT, each in a session of its own: few clients select a mailbox twice."""
    timed: list[list[float]] = [[] for _ in servers]
    for _ in range(SELECTS):
        for samples, server in zip(timed, servers, strict=True):
            with server.imap(READER) as session:
                samples.append(_seconds(session, "SELECT INBOX"))
    return timed


def _sorting_new_mail(sessions: Sequence[ImapClient], command: str) -> list[list[float]]:
    """Return seconds of a SORT that is the first one after a new message, in sessions which have sorted before."""
    timed: list[list[float]] = [[] for _ in sessions]
    texts = MailTexts(MAIL_BYTES, NEW_SEED)
    for _ in range(TIMES):
        text = next(texts)
        for samples, session in zip(timed, sessions, strict=True):
            session.command(f"APPEND INBOX {{{len(text)}+}}\r\n{text.decode()}")
            session.command("NOOP")
            samples.append(_seconds(session, command))
    return timed


def _seconds(session: ImapClient, command: str) -> float:
    began = time.perf_counter()
    session.drain(command)
    return time.perf_counter() - began


def _resuming(servers: Sequence[Server]) -> list[list[float]]:
    """Return seconds until a client that left a moment ago knows what has changed since."""
    timed: list[list[float]] = [[] for _ in servers]
    dice = random.Random(4)
    for _ in range(RESUMPTIONS):
        for samples, server in zip(timed, servers, strict=True):
            samples.append(_resuming_once(server, dice))
    return timed


def _resuming_once(server: Server, dice: random.Random) -> float:
    with server.imap(READER) as session, server.imap(READER) as other:
        session.command("ENABLE QRESYNC")
        known = b"\n".join(session.command("SELECT INBOX"))
        uidvalidity, modseq = (_number(name, known) for name in ("UIDVALIDITY", "HIGHESTMODSEQ"))
        messages = int(re.findall(rb"(\d+) EXISTS", known)[0])
        session.command("CLOSE")
        other.command("SELECT INBOX")
        changed = ",".join(str(number) for number in dice.sample(range(1, messages + 1), CHANGES))
        other.command(f"STORE {changed} +FLAGS.SILENT (\\Flagged)")
        began = time.perf_counter()
        said = session.command(f"SELECT INBOX (QRESYNC ({uidvalidity} {modseq}))")
        took_s = time.perf_counter() - began
        if sum(b" FETCH (" in line for line in said) > CHANGES or b"FETCH (" not in b"".join(said):
            raise MeasurementError("QRESYNC does not tell the changes")
        return took_s


def _number(name: str, text: bytes) -> int:
    return int(re.findall(rb"\[" + name.encode() + rb" (\d+)\]", text)[0])


def _compared(name: str, timed: Sequence[Sequence[float]], peer: str, aim: str) -> Figure:
    """Return the best of a few tries at each server."""
    ours, theirs = (1000 * min(samples) for samples in timed)
    detail: Mapping[str, object] = {"ratio": ours / theirs, "ours_s": list(timed[0]), "theirs_s": list(timed[1])}
    return Figure(f"{name} ({ours / theirs:.2g} of Dovecot's)", ours, "ms", theirs, peer, aim, detail)


# ---- many sessions


def _idle_sessions(servers: Sequence[Server], users: Sequence[str], scale: Scale, peer: str) -> list[Figure]:
    names = [users[number % len(users)] for number in range(scale.imap_sessions)]
    memory, cpu = [], []
    for server in servers:
        before = _memory_bytes(server)
        with _sessions(server, names) as sessions:
            for session in sessions:
                session.idle()
            memory.append((_memory_bytes(server) - before) / len(names) / 1024)
            cpu_before = _cpu_s(server)
            time.sleep(scale.imap_idle_s)
            cpu.append(1000 * (_cpu_s(server) - cpu_before) / scale.imap_idle_s)
    what = f"{len(names)} sessions in IDLE"
    return [
        Figure(f"{what}, memory a session", memory[0], "KiB", memory[1], peer, "under 100 KiB"),
        Figure(f"{what}, processor time a second", cpu[0], "ms", cpu[1], peer),
    ]


def _busy_sessions(servers: Sequence[Server], users: Sequence[str], scale: Scale, peer: str) -> list[Figure]:
    rates, late = [], []
    for server in servers:
        with _sessions(server, users) as sessions:
            latencies = _work(sessions, scale.imap_busy_s)
        rates.append(len(latencies) / scale.imap_busy_s)
        late.append(quantiles_ms(latencies)["p95_ms"])
    what = f"{len(users)} sessions at work"
    return [
        Figure(f"{what}, all commands", rates[0], "commands/s", rates[1], peer),
        Figure(f"{what}, a command's p95", late[0], "ms", late[1], peer),
    ]


@contextmanager
def _sessions(server: Server, users: Sequence[str]) -> Iterator[list[ImapClient]]:
    with ExitStack() as stack:
        sessions = [stack.enter_context(server.imap(user)) for user in users]
        for session in sessions:
            session.command("SELECT INBOX")
        yield sessions


def _work(sessions: Sequence[ImapClient], seconds: float) -> list[float]:
    """Let each session do what a mail program does, one command at a time. Return the seconds of each command."""
    latencies: list[float] = []
    failed: list[Exception] = []
    deadline = time.monotonic() + seconds

    def work(session: ImapClient, number: int) -> None:
        dice = random.Random(number)
        try:
            while time.monotonic() < deadline:
                message = dice.randint(1, ACTIVE_MESSAGES - 50)
                for text in (
                    "NOOP",
                    f"FETCH {message}:{message + 49} (UID FLAGS)",
                    f"FETCH {message}:{message + 19} (UID ENVELOPE BODYSTRUCTURE)",
                    "UID SEARCH UNSEEN",
                    f"FETCH {message} (BODY.PEEK[])",
                    f"STORE {message} +FLAGS.SILENT (\\Seen)",
                ):
                    began = time.perf_counter()
                    session.drain(text)
                    latencies.append(time.perf_counter() - began)
        except (MeasurementError, OSError) as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(session, number)) for number, session in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise MeasurementError(f"a session at work failed: {failed[0]}") from failed[0]
    return latencies


def _memory_bytes(server: Server) -> int:
    """Return the server's memory, what processes share counted once."""
    return sum(process.memory_full_info().pss for process in server.processes())


def _cpu_s(server: Server) -> float:
    return sum(process.cpu_times().user + process.cpu_times().system for process in server.processes())
