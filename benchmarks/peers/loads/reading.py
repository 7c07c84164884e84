"""IMAP at the near server, in the mailbox that holds half of all messages, and sessions that only wait."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

from benchmarks.clients.wire import ImapClient
from benchmarks.peers.pairs.pair import Pair
from benchmarks.peers.pairs.processes import memory_bytes
from benchmarks.peers.rows import Row
from benchmarks.peers.sizes import Sizes


def idle_sessions(pair: Pair, sizes: Sizes) -> dict[Row, float]:
    """Measure the memory of sessions in IDLE, of all users in turn."""
    before = memory_bytes(pair.near_processes())
    with ExitStack() as stack:
        for number in range(sizes.sessions):
            session = stack.enter_context(pair.near.session(pair.users[number % len(pair.users)]))
            session.command("SELECT INBOX")
            session.idle()
        after = memory_bytes(pair.near_processes())
    return {
        Row(f"memory with {sizes.sessions} sessions in IDLE, near server", "MiB"): after / 2**20,
        Row("memory that each session in IDLE adds", "KiB"): (after - before) / sizes.sessions / 1024,
    }


def reading(pair: Pair, sizes: Sizes) -> dict[Row, float]:
    """Measure commands that a session has given once before: each server has had time to prepare for them."""
    messages = sizes.messages // 2
    commands = (
        "FETCH 1:* (UID FLAGS)",
        "FETCH 1:* (ENVELOPE)",
        f'SEARCH SUBJECT "number {messages // 3}"',
        "SORT (DATE) UTF-8 ALL",
    )
    user = pair.users[0]
    rows = {f"SELECT, {messages:,} messages": statistics.median(_selecting(pair, user) for _ in range(sizes.times))}
    with pair.near.session(user) as session:
        session.command("SELECT INBOX")
        for command in commands:
            session.drain(command)
            rows[command] = statistics.median(_timed(session, command) for _ in range(sizes.times))
    return {Row(name, "ms"): 1000 * seconds for name, seconds in rows.items()}


def _selecting(pair: Pair, user: str) -> float:
    """Return the seconds of SELECT in a new session."""
    with pair.near.session(user) as session:
        return _timed(session, "SELECT INBOX")


def _timed(session: ImapClient, command: str) -> float:
    began = time.perf_counter()
    session.drain(command)
    return time.perf_counter() - began
