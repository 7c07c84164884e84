"""A trace of two running nodes, as an operator's command shows it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster

LIMIT_S = 120.0
SECRET = "the-text-of-this-mail"
FOLDER = "fdp&IC4-.exe"  # with U+202E, which turns what follows around


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("trace") / "nodes", ["alice", "bob"], size=2) as started:
        yield started


@contextmanager
def tracing(cluster: Cluster, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Run the command at dc1, and go on once it has begun."""
    config = str(cluster.directory / "dc1.toml")
    command = [sys.executable, "-m", "replicator", "trace", *arguments, "--config", config]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "tracing; Ctrl-C ends it\n"
        try:
            yield process
        finally:
            process.kill()


def deliver(cluster: Cluster, user: str) -> None:
    with smtplib.LMTP(*cluster.node("dc1").address("lmtp")) as client:
        client.sendmail("sender@example.org", [user], f"Subject: {SECRET}\r\n\r\n{SECRET}\r\n")


def test_delivery_is_seen_on_its_way_and_its_mail_is_not(cluster: Cluster) -> None:
    with tracing(cluster, "dc2", "--command", "ENTRIES,SAVE,ACK", "--json") as process:
        deliver(cluster, "alice")
        assert process.stdout is not None
        brought, acknowledged = None, None
        while brought is None or acknowledged is None:
            line = process.stdout.readline()
            assert SECRET not in line
            event = json.loads(line)
            assert event["peer"] == "dc2"
            if event["sent"] and any(place["mailbox"] == "INBOX" for place in event["places"]):
                brought = event
            if brought and event["command"] == "ACK" and event["entries"] == brought["entries"][-1:]:
                acknowledged = event
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        assert re.fullmatch(r"\d+ commands\n", errors)
    assert {place["user"] for place in brought["places"]} == {"alice"}
    assert not acknowledged["sent"]
    assert SECRET not in rest


def test_lines_for_people_are_of_one_user_and_end_after_some(cluster: Cluster) -> None:
    with tracing(cluster, "--user", "bob", "--count", "1") as process:
        deliver(cluster, "alice")
        deliver(cluster, "bob")
        told, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (0, "1 command\n")
    [line] = told.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} (->|<-) dc2 [A-Z-]+ +[\d.]+ (B|KiB) (.*, )?bob[/ ].*", line), line


def test_trace_ends_after_some_seconds(cluster: Cluster) -> None:
    with tracing(cluster, "--seconds", "0.5", "--user", "nobody") as process:
        assert process.communicate(timeout=LIMIT_S) == ("", "0 commands\n")
    assert process.returncode == 0


def test_names_that_others_chose_do_not_reach_the_terminal_as_commands(cluster: Cluster) -> None:
    reader, writer = pty.openpty()
    arguments = ("dc2", "--user", "alice", "--mailbox", "fdp\u202e.exe", "--count", "1")
    with tracing(cluster, *arguments, stdout=writer) as process:
        os.close(writer)
        with cluster.node("dc1").imap("alice") as client:
            client.command(f'CREATE "{FOLDER}"')
            client.command(f'APPEND "{FOLDER}" {{{len(SECRET)}+}}\r\n{SECRET}')
        shown = read_to_end(reader)
        assert process.wait(LIMIT_S) == 0
    assert 'alice/"fdp?.exe"' in shown
    assert all(line.isprintable() and len(line) <= 80 for line in shown.split("\r\n")), shown


def read_to_end(terminal: int) -> str:
    """Return what is written to a terminal until nobody has it open."""
    shown = b""
    while select.select([terminal], [], [], LIMIT_S)[0]:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # EIO: the other end is closed
            break
    os.close(terminal)
    return shown.decode()


def test_refusals_are_errors(cluster: Cluster) -> None:
    config = str(cluster.directory / "dc1.toml")
    for arguments, told in ((["dc9"], "dc1 has no peer 'dc9'"), (["--command", "SAEV"], "did you mean SAVE?")):
        command = [sys.executable, "-m", "replicator", "trace", *arguments, "--config", config]
        ended = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, text=True)
        assert ended.returncode == 1
        assert told in ended.stderr


@pytest.mark.long
def test_trace_ends_with_the_link_and_with_the_node(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", ["alice"], size=2) as cluster:
        with tracing(cluster, "dc2", "--user", "alice") as process:
            cluster.node("dc2").stop()
            told, errors = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, told) == (0, "--- the link to dc2 has ended\n"), errors
        with tracing(cluster, "--user", "alice") as process:
            cluster.node("dc1").stop()
            told, errors = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, told) == (1, "")
            assert errors.startswith("0 commands\nError: the trace was broken off: the node has stopped, or "), errors
