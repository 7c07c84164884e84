"""IMAP in processes of its own: sessions at different doors see the same, and outlive each other's door."""

from __future__ import annotations

import imaplib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import psutil
import pytest

from benchmarks.clients.wire import connect_lmtp, deliver
from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from tests.end_to_end.helpers.doors import clients_of, doors_of, has_ended, wait_for
from tests.end_to_end.helpers.ledger import log_in
from tests.store.damaging import damage

SESSIONS_MAX = 10
EXTRA = f"[workers]\ndoors = 2\n[limits]\nimap_connections_per_user = {SESSIONS_MAX}\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Cluster(tmp_path, ["alice", "bob"], size=1, copies=1, extra=EXTRA) as cluster:
        yield cluster.nodes[0]


@contextmanager
def at_each_door(node: Node, doors: Sequence[psutil.Process] = ()) -> Iterator[list[imaplib.IMAP4]]:
    """Yield sessions of alice in her INBOX, one at each of these doors, in their order. Default: all doors."""
    doors = doors or doors_of(node)
    by_door: dict[int, imaplib.IMAP4] = {}
    with ExitStack() as stack:
        while len(by_door) < len(doors):
            client = imaplib.IMAP4(*node.address("imap"), timeout=60)
            port = client.socket().getsockname()[1]
            door = next(door.pid for door in doors if port in clients_of(door))
            if door in by_door:
                client.shutdown()  # at once: of too many that have not logged in, the oldest would be dropped
                continue
            stack.callback(client.shutdown)
            client.login("alice", PASSWORD)
            assert client.select("INBOX")[0] == "OK"
            by_door[door] = client
        yield [by_door[door.pid] for door in doors]


def subjects(client: imaplib.IMAP4) -> list[bytes]:
    client.noop()
    _, found = client.fetch("1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
    return [part[1].strip() for part in found if isinstance(part, tuple)]


def test_sessions_at_two_doors_see_each_others_changes(node: Node) -> None:
    with at_each_door(node) as (one, other):
        assert one.append("INBOX", "", "", b"Subject: first\r\n\r\nx\r\n")[0] == "OK"
        with connect_lmtp(node.address("lmtp")) as connection:
            deliver(connection, ["alice"], b"Subject: second\r\n\r\nx\r\n")
        for client in (other, one):
            assert subjects(client) == [b"Subject: first", b"Subject: second"]
        assert other.store("1", "+FLAGS", "(\\Deleted)")[0] == "OK"
        one.noop()
        assert one.expunge()[0] == "OK"
        assert subjects(other) == subjects(one) == [b"Subject: second"]
        assert other.create("New")[0] == "OK"
        assert one.copy("1", "New")[0] == "OK"
        assert other.select("New")[1] == [b"1"]


@pytest.mark.long
def test_a_client_that_idles_hears_of_what_is_done_at_another_door(node: Node) -> None:
    with at_each_door(node) as (one, other):
        one.send(b"i IDLE\r\n")
        assert one.readline().startswith(b"+ ")
        assert other.append("INBOX", "", "", b"Subject: x\r\n\r\nx\r\n")[0] == "OK"
        assert one.readline() == b"* 1 EXISTS\r\n"


def test_a_door_that_is_killed_ends_its_own_sessions_only(node: Node) -> None:
    doors = doors_of(node)
    with at_each_door(node) as (lost, stays):
        assert lost.append("INBOX", "", "", b"Subject: acknowledged\r\n\r\nx\r\n")[0] == "OK"
        doors[0].kill()
        assert lost.readline() == b""
        assert subjects(stays) == [b"Subject: acknowledged"]
        wait_for("another door", lambda: len(doors_of(node)) == len(doors) and doors[0] not in doors_of(node))
        with at_each_door(node) as again:
            assert all(subjects(client) == [b"Subject: acknowledged"] for client in again)
            assert again[0].append("INBOX", "", "", b"Subject: later\r\n\r\nx\r\n")[0] == "OK"
            assert len(subjects(stays)) == 2


MAILS = 60


def has_search_texts(node: Node) -> bool:
    """Return True once SEARCH reads no bodies."""
    texts = cast("Mapping[str, int] | None", node.get("/api/v1/status")["search_texts"])
    return texts is not None and (texts["bodies"], texts["waiting"]) == (MAILS, 0)


def open_files(process: psutil.Process) -> list[str]:
    """Return the files that the process has open; psutil leaves out those that have been deleted."""
    found = list[str]()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(link.readlink()))
    return found


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_doors_search_by_search_texts_whatever_happens_to_their_file(node: Node) -> None:
    file = node.data / "search.db"
    odd = b" ".join(b"%d" % number for number in range(1, MAILS + 1, 2))
    with at_each_door(node) as clients:
        for number in range(1, MAILS + 1):
            mail = b"\r\n%d %b\r\n" % (number, b"odd" if number % 2 else b"even")
            assert clients[0].append("INBOX", "", "", mail)[0] == "OK"

        def search() -> None:
            for client in clients:
                client.noop()
                assert client.search(None, "BODY", "odd") == ("OK", [odd])

        wait_for("search texts", lambda: has_search_texts(node))
        search()
        assert all(str(file) in open_files(door) for door in doors_of(node))
        for _ in range(10):
            node.ask("POST", "/api/v1/search/rebuild")
            search()
        wait_for("search texts", lambda: has_search_texts(node))
        damage(file, "UPDATE search_text SET packed = (SELECT packed FROM search_text ORDER BY id DESC LIMIT 1)")
        with file.open("rb"):  # so that no other file gets its inode
            damaged = file.stat().st_ino
            search()
            wait_for("another file", lambda: file.exists() and file.stat().st_ino != damaged)
        wait_for("search texts", lambda: has_search_texts(node))
        search()
        assert all(str(file) in open_files(door) for door in doors_of(node))
        file.unlink()
        search()
        processes = [psutil.Process(node.pid), *doors_of(node)]
        node.ask("POST", "/api/v1/search/rebuild")
        wait_for(
            "no deleted file is open", lambda: not any(f"{file} (deleted)" in open_files(one) for one in processes)
        )
    assert node.get("/healthz")["healthy"]


@pytest.mark.long
def test_limits_of_a_user_hold_for_all_doors_together(node: Node) -> None:
    open_ones = [log_in(node, "bob") for _ in range(SESSIONS_MAX)]
    with imaplib.IMAP4(*node.address("imap"), timeout=60) as client:
        with pytest.raises(imaplib.IMAP4.error, match=f"{SESSIONS_MAX} connections"):
            client.login("bob", PASSWORD)
        open_ones.pop().logout()
        wait_for("the place is free", lambda: _can_log_in(client))
    for client in open_ones:
        client.logout()


def _can_log_in(client: imaplib.IMAP4) -> bool:
    try:
        return client.login("bob", PASSWORD)[0] == "OK"
    except imaplib.IMAP4.error:
        return False


@pytest.mark.long
def test_a_wrong_password_is_refused_at_every_door(node: Node) -> None:
    for _ in range(3):
        refused = pytest.raises(imaplib.IMAP4.error, match="AUTHENTICATIONFAILED")
        with imaplib.IMAP4(*node.address("imap"), timeout=60) as client, refused:
            client.login("alice", "wrong")


def reload(node: Node) -> None:
    node.ask("POST", "/api/v1/reload")


def retiring(node: Node) -> int:
    host, port = node.address("http")
    with urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        [value] = re.findall(rb"^replicator_doors_retiring (\d+)", answer.read(), re.MULTILINE)
    return int(value)


@pytest.mark.long
def test_a_reload_opens_fresh_doors_and_ends_no_session(node: Node) -> None:
    before = doors_of(node)
    with at_each_door(node) as (one, other):
        one.send(b"i IDLE\r\n")
        assert one.readline().startswith(b"+ ")
        reload(node)
        fresh = [door for door in doors_of(node) if door not in before]
        assert len(fresh) == len(before)
        with log_in(node, "alice") as newcomer:
            port = newcomer.socket().getsockname()[1]
            assert any(port in clients_of(door) for door in fresh)
            assert newcomer.append("INBOX", "", "", b"Subject: later\r\n\r\nx\r\n")[0] == "OK"
        assert retiring(node) == len(before)
        assert one.readline() == b"* 1 EXISTS\r\n"
        assert subjects(other) == [b"Subject: later"]
        other.send(b"o LOGOUT\r\n")
        assert other.readline().startswith(b"* BYE ")
        wait_for("its door ends", lambda: has_ended(before[1]) and retiring(node) == 1)
        assert not has_ended(before[0])
        one.send(b"DONE\r\n")
        while not one.readline().startswith(b"i OK"):
            pass
        assert subjects(one) == [b"Subject: later"]
    wait_for("the other door ends", lambda: has_ended(before[0]) and retiring(node) == 0)
    assert doors_of(node) == fresh
    assert node.get("/healthz")["healthy"]


@pytest.mark.long
def test_a_further_reload_ends_sessions_that_are_left_of_the_doors_before_the_last(node: Node) -> None:
    before = doors_of(node)
    with at_each_door(node) as (one, _):
        reload(node)
        assert subjects(one) == []
        reload(node)
        wait_for("the first doors end", lambda: all(map(has_ended, before)))
        assert one.readline().startswith(b"* BYE ")
        assert one.readline() == b""
    wait_for("as many doors as configured", lambda: len(doors_of(node)) == len(before))


@pytest.mark.long
def test_a_door_that_dies_while_another_one_retires_is_opened_again(node: Node) -> None:
    before = doors_of(node)
    with at_each_door(node) as (one, other):
        reload(node)
        fresh = [door for door in doors_of(node) if door not in before]
        fresh[0].kill()
        wait_for("another door", lambda: has_ended(fresh[0]) and len(doors_of(node)) == 2 * len(before))
        assert subjects(one) == subjects(other) == []
        with at_each_door(node, [door for door in doors_of(node) if door not in before]) as clients:
            assert all(client.append("INBOX", "", "", b"Subject: x\r\n\r\nx\r\n")[0] == "OK" for client in clients)
        assert len(subjects(one)) == len(before)
