from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from replicator.cli.output import ago, size
from replicator.config import Address, ListenConfig, config_text, default_config
from replicator.status import CertificateStatus, NoRoom
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode, served_node


def write_config(directory: Path, listen: ListenConfig) -> Path:
    file = directory / "dc1.toml"
    file.write_text(config_text(default_config("dc1", directory, listen=listen), directory))
    return file


def words(text: str) -> str:
    return " ".join(text.split())


def test_status_shows_node_and_links(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    config = write_config(tmp_path, ListenConfig(http=Address("127.0.0.1", served.port)))
    result = invoke("status", "--config", config)
    assert (result.exit_code, result.stderr) == (0, "")
    text = words(result.stdout)
    assert "dc1 1m 30s dc2 dc1 3 1 of 2 9 0 d1d1d1d1" in text
    assert "dc1 dc2 up 1m 30s 0.25 ms 0 0 B 0.0" in text
    assert "dc1 dc3 never up - 7 2 KiB 1.5" in text
    assert "dc1 has no link to dc3 (127.0.0.1:4422): connection refused" in text
    assert "same state" not in text


def test_files_that_only_the_node_reads_may_be_missing(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    config = write_config(tmp_path, ListenConfig(http=Address("127.0.0.1", served.port)))
    lost = '[[certificate]]\nfile = "lost"\nkey = "lost"\n[client_certificates]\nca = "lost"\ncrl = "lost"\n'
    keys = '[oauth]\nissuer = "x"\naudience = "x"\nclaim = "x"\njwks = "lost"\n'
    config.write_text(f"{config.read_text()}\n{lost}{keys}")
    result = invoke("status", "--config", config)
    assert (result.exit_code, result.stderr) == (0, "")


def test_socket_that_a_killed_node_has_left_does_not_hide_the_address(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    config = write_config(tmp_path, ListenConfig(http=Address("127.0.0.1", served.port)))
    left = tmp_path / "dc1" / "http.sock"
    left.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
        killed.listen()
    assert left.is_socket()
    assert invoke("status", "--config", config).exit_code == 0
    left.unlink()
    left.write_text("no socket\n", "ascii")
    assert invoke("status", "--config", config).exit_code == 0


@pytest.fixture
def other(tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(tmp_path / "other") as node:
        node.report.sid = "dc2"
        yield node


@pytest.mark.parametrize(("digest", "agree"), [("d1" * 16, True), ("ee" * 16, False)])
def test_status_compares_nodes_side_by_side(
    served: ServedNode,
    other: ServedNode,
    invoke: Invoke,
    digest: str,
    agree: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    other.report.digest = digest
    urls = ("--url", served.url, "--url", other.url)
    shown = invoke("status", *urls)
    document = json.loads(invoke("status", *urls, "--json").stdout)
    assert ("The 2 nodes show the same state" in shown.stdout, "states differ" in shown.stdout) == (agree, not agree)
    assert (document["agree"], document["parted"]) == (agree, [])
    assert [node["status"]["sid"] for node in document["nodes"]] == ["dc1", "dc2"]


def test_nodes_that_cannot_reach_each_other_never_count_as_equal(
    served: ServedNode, other: ServedNode, invoke: Invoke
) -> None:
    served.report.component = ("dc1",)
    urls = ("--url", served.url, "--url", other.url)
    shown = invoke("status", *urls)
    document = json.loads(invoke("status", *urls, "--json").stdout)
    assert "do not reach each other: dc1 and dc2." in shown.stdout
    assert "same state" not in shown.stdout
    assert (document["agree"], document["parted"]) == (False, [["dc1", "dc2"]])


def test_node_with_too_few_copies_is_named(served: ServedNode, other: ServedNode, invoke: Invoke) -> None:
    urls = ("--url", served.url, "--url", other.url)
    assert "copies" not in invoke("status", *urls).stdout
    served.report.copies_reachable = 1
    shown = words(invoke("status", *urls).stdout)
    assert "dc1 can make 1 of 2 copies: it accepts changes with fewer copies, as" in shown
    assert "dc2 can make" not in shown
    served.report.when_short = "refuse"
    assert "dc1 can make 1 of 2 copies: it refuses changes until more nodes are reachable" in words(
        invoke("status", *urls).stdout
    )
    document = json.loads(invoke("status", *urls, "--json").stdout)
    assert [node["status"]["when_short"] for node in document["nodes"]] == ["refuse", "proceed"]


def test_peer_that_the_log_no_longer_covers_is_named(served: ServedNode, invoke: Invoke) -> None:
    assert "dc3 lacks" not in invoke("status", "--url", served.url).stdout
    served.report.needs_sync = True
    shown = words(invoke("status", "--url", served.url).stdout)
    assert (
        "dc3 lacks entries that have left the log of dc1: once linked, it fetches them from another node's log, or"
        " compares its mailboxes and takes over what differs." in shown
    )
    document = json.loads(invoke("status", "--url", served.url, "--json").stdout)
    assert [link["needs_sync"] for link in document["nodes"][0]["status"]["links"]] == [False, True]


def test_json_has_the_links_of_all_nodes_and_the_room_on_disks(served: ServedNode, invoke: Invoke) -> None:
    document = json.loads(invoke("status", "--url", served.url, "--json").stdout)
    status = document["nodes"][0]["status"]
    assert status["edges"] == {"dc1": ["dc2"], "dc2": ["dc1"]}
    assert status["disks"] == [
        {"directory": "/srv/dc1", "free_bytes": 1 << 30, "all_bytes": 100 << 30, "is_short": True}
    ]


def test_bodies_that_a_node_lacks_are_counted(served: ServedNode, invoke: Invoke) -> None:
    assert "lacks" not in invoke("status", "--url", served.url).stdout
    served.report.texts_lacking = 1
    shown = words(invoke("status", "--url", served.url).stdout)
    assert "dc1 lacks 1 body of messages that it shows. It fetches them from other nodes, newest first" in shown


def test_status_tells_what_a_full_disk_keeps_out(served: ServedNode, invoke: Invoke) -> None:
    lack = NoRoom("/srv/mail", 4096, "dc2.1 7", "alice", 4_000_000, 1_000)
    served.report.no_room = (lack, replace(lack, entry="dc2.1 8"))
    shown = words(invoke("status", "--url", served.url).stdout)
    assert "dc1 is behind and cannot continue: no room on the disk of /srv/mail, 4096 bytes free" in shown
    assert "entry dc2.1 7 with 4000000 bytes of mail for alice" in shown
    assert "(and 1 more)" in shown


def test_status_tells_why_a_node_does_not_serve(served: ServedNode, invoke: Invoke) -> None:
    served.report.not_serving = ("it is new",)
    assert "dc1 turns clients away: it is new" in words(invoke("status", "--url", served.url).stdout)


@pytest.mark.parametrize(
    ("days", "told"), [(-1, "has expired: /a/dc1.pem"), (29, "expires in 29 days: /a/dc1.pem"), (30, "")]
)
def test_status_tells_which_certificates_expire_soon(served: ServedNode, invoke: Invoke, days: int, told: str) -> None:
    expires_ms = served.report.clock_ms + days * 86_400_000
    served.report.certificates = (CertificateStatus("/a/dc1.pem", "dc1", expires_ms),)
    shown = words(invoke("status", "--url", served.url).stdout)
    assert (f"A certificate of dc1 {told}; renew it" in shown) if told else ("certificate" not in shown)


def test_status_tells_what_is_wrong_with_dovecots(served: ServedNode, invoke: Invoke) -> None:
    assert "Dovecot" not in invoke("status", "--url", served.url).stdout
    served.report.dovecots = ("the Dovecot at [::1]:2425: it cannot be reached",)
    shown = words(invoke("status", "--url", served.url).stdout)
    assert "dc1 and its Dovecots: the Dovecot at [::1]:2425: it cannot be reached." in shown


def test_status_tells_what_a_state_transfer_has_postponed(served: ServedNode, invoke: Invoke) -> None:
    assert "differently" not in invoke("status", "--url", served.url).stdout
    served.report.postponed = 2
    shown = words(invoke("status", "--url", served.url).stdout)
    assert "dc1 still shows 2 mailboxes or folder trees differently from a peer after a state transfer." in shown


def test_overdue_entries_are_shown_with_the_reason(served: ServedNode, invoke: Invoke) -> None:
    assert "too long" not in invoke("status", "--url", served.url).stdout
    served.report.overdue = ("predecessor 7 of dc2.1 is missing at this node",)
    shown = words(invoke("status", "--url", served.url).stdout)
    assert (
        "At dc1 1 entry has waited for too long with all nodes linked: predecessor 7 of dc2.1 is missing at this node."
        in shown
    )


def test_backlog_of_an_unheard_peer_is_shown_as_unknown(served: ServedNode, invoke: Invoke) -> None:
    served.report.is_lag_known = False
    assert "dc1 dc3 never up - - - -" in words(invoke("status", "--url", served.url).stdout)
    document = json.loads(invoke("status", "--url", served.url, "--json").stdout)
    link = document["nodes"][0]["status"]["links"][1]
    assert [link["lag_entries"], link["lag_bytes"], link["lag_s"]] == [None, None, None]


def test_unreachable_node_is_named_and_the_others_are_shown(
    served: ServedNode, other: ServedNode, invoke: Invoke
) -> None:
    result = invoke("status", "--url", served.url, "--url", "http://127.0.0.1:1", "--url", other.url)
    assert result.exit_code == 1
    assert "dc1 1m 30s" in words(result.stdout)
    assert "The 2 nodes that answered show the same state." in result.stdout
    assert result.stderr == "Error: http://127.0.0.1:1: no answer (Connection refused); is the node running?\n"


def test_node_given_by_its_configuration_is_called_by_its_id(invoke: Invoke, tmp_path: Path) -> None:
    config = write_config(tmp_path, ListenConfig(http=Address("127.0.0.1", 1)))
    result = invoke("status", "--config", config)
    assert "dc1 no answer" in words(result.stdout)
    assert result.stderr == "Error: dc1: no answer at http://127.0.0.1:1 (Connection refused); is the node running?\n"


def test_nodes_are_asked_at_once(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        urls = [f"--url=http://127.0.0.1:{each.getsockname()[1]}" for each in (one, two)]
        asking = threading.Thread(target=invoke, args=("status", *urls))
        asking.start()
        first, _ = one.accept()
        second, _ = two.accept()
        with first, second:
            assert [each.recv(4) for each in (first, second)] == [b"GET ", b"GET "]
            assert b"\r\n\r\n" in first.recv(1 << 16)
            with pytest.raises(BlockingIOError):  # the stream is open, as the command still waits
                first.recv(1, socket.MSG_DONTWAIT)
        asking.join()


def test_wait_for_a_silent_node_is_short(served: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.cli.commands.monitoring.status.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = invoke("status", "--url", url, "--url", served.url)
    assert result.stderr == f"Error: {url}: no answer (timed out); is the node running?\n"
    assert "dc1 1m 30s" in words(result.stdout)


def test_port_of_another_protocol_is_told_on_one_line(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"* OK IMAP\r\n")
                connection.recv(1 << 16)

        greeting = threading.Thread(target=greet)
        greeting.start()
        result = invoke("status", "--url", url)
        greeting.join()
    assert result.stderr == (
        f"Error: {url}: no HTTP server: it answers '* OK IMAP'; give the address of the node's `listen.http`\n"
    )


def test_status_shows_mailboxes_with_their_master_and_digests(
    served: ServedNode, other: ServedNode, invoke: Invoke
) -> None:
    served.report.master, other.report.master, other.report.digest = None, "dc3", "ee" * 16
    result = invoke("status", "--url", served.url, "--url", other.url, "--user", "bob")
    assert "INBOX dc3 4 1 4 KiB dc1: d1d1d1d1, dc2: eeeeeeee" in words(result.stdout)
    document = json.loads(invoke("status", "--url", served.url, "--user", "bob", "--json").stdout)
    assert [box["user"] for box in document["nodes"][0]["mailboxes"]] == ["bob"]


def test_digests_with_one_prefix_are_shown_as_different(served: ServedNode, other: ServedNode, invoke: Invoke) -> None:
    other.report.digest = "d1" * 15 + "d2"
    result = invoke("status", "--url", served.url, "--url", other.url, "--user", "bob")
    assert "dc1: d1d1d1d1, dc2: d1d1d1d1" in words(result.stdout)


def test_unknown_user_is_reported_once(served: ServedNode, other: ServedNode, invoke: Invoke) -> None:
    result = invoke("status", "--url", served.url, "--url", other.url, "--user", "nobody")
    assert result.exit_code == 1
    assert "dc1 1m 30s" in words(result.stdout)
    assert result.stderr.startswith(f"Error: {served.url}, {other.url}: there is no user 'nobody'; ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", [80, None])
def test_tables_fit_the_terminal_without_trailing_blanks(
    served: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, columns: int | None
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    served.report.component = tuple(f"dc{number}" for number in range(1, 9))
    served.report.mailboxes_total, served.report.log_entries = 1_234_567, 123_456_789
    served.report.error = "[Errno 111] " + "the clocks are far apart " * 8
    lines = invoke("status", "--url", served.url, "--url", "http://127.0.0.1:1", "--user", "bob").stdout.splitlines()
    assert max(map(len, lines)) <= (columns or 120)
    assert [line for line in lines if line != line.rstrip()] == []
    shown = " ".join(lines)
    assert "…" not in shown
    for text in ("123456789", "1234567", "[Errno 111]", "d1d1d1d1", "INBOX", "seconds"):
        assert text in shown


def test_every_column_is_explained(served: ServedNode, other: ServedNode, invoke: Invoke) -> None:
    other.report.digest = "ee" * 16
    shown = invoke("status", "--url", served.url, "--url", other.url, "--user", "bob").stdout
    heads = [line.strip() for line in shown.splitlines() if re.match(" *(node|from|mailbox) ", line)]
    columns = {column for line in heads for column in re.split(r"\s{2,}", line)} - {"from", "to", "mailbox"}
    help_text = invoke("status", "--help").stdout
    explained = [column for column in columns if re.search(rf"^ +(.*, )?{column}\b", help_text, re.MULTILINE)]
    assert len(explained) > 12
    assert columns - set(explained) == {"messages", "unseen"}


def test_node_that_neither_runs_nor_listens_is_told_apart(invoke: Invoke, tmp_path: Path) -> None:
    config = write_config(tmp_path, ListenConfig())
    result = invoke("status", "--config", config)
    assert result.exit_code == 2
    assert "there is no socket at" in result.stderr
    assert "[listen] has no http" in result.stderr


def test_wrong_configuration_is_quoted_with_its_line(invoke: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "dc1.toml"
    config.write_text('[node]\nid = "dc1"\ndate = "dc1"\n')
    result = invoke("status", "--config", config)
    assert result.exit_code == 2
    assert f"Error: {config}:3: " in result.stderr


def test_status_of_nothing_is_wrong_usage(invoke: Invoke) -> None:
    assert invoke("status").exit_code == 2


def test_sizes_and_spans_are_readable() -> None:
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5 MiB", "3.0 TiB"]
    assert [ago(0, seconds * 1000) for seconds in (59, 125, 7_199, 90_061)] == ["59s", "2m 5s", "1h 59m", "1d 1h"]
    assert ago(5_000, 0) == "0s"


def test_one_node_under_two_names_is_not_equal_to_itself(served: ServedNode, invoke: Invoke) -> None:
    """A file of another node, whose address is at loopback, leads to the node of this machine."""
    other_name = served.url.replace("127.0.0.1", "localhost")
    result = invoke("status", "--wait-equal", "10ms", "--url", served.url, "--url", other_name)
    assert result.exit_code == 1
    assert "lead to one node, dc1: name each node by an address of its own" in result.stderr


def test_watched_state_is_asked_for_again_until_ctrl_c(served: ServedNode) -> None:
    command = [sys.executable, "-m", "replicator", "status", "--url", served.url, "--watch", "0.5", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        states = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert (watching.wait(30), watching.stderr and watching.stderr.read()) == (0, "")
    assert [state["nodes"][0]["status"]["sid"] for state in states] == ["dc1", "dc1"]
    assert states[0]["nodes"][0]["url"] == served.url


def test_wait_ends_when_nodes_are_equal(served: ServedNode, other: ServedNode, invoke: Invoke) -> None:
    other.report.digest = "ee" * 16
    served.report.lag_entries, served.report.lag_s = 2, 0.2  # busy nodes always have yet to confirm something
    threading.Timer(1.0, partial(setattr, other.report, "digest", served.report.digest)).start()
    result = invoke("status", "--wait-equal", "1h", "--url", served.url, "--url", other.url)
    assert (result.exit_code, result.stderr) == (0, "waiting: the nodes' states differ\n")
    assert "The 2 nodes show the same state" in result.stdout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"digest": "ee" * 16}, "the nodes' states differ"),
        ({"component": ("dc2",)}, "dc1 and dc2 do not reach each other"),
        ({"not_serving": ("this node is new",)}, "dc2 turns clients away: this node is new"),
        ({"texts_lacking": 1}, "dc2 lacks 1 body"),
        ({"overdue": ("a gap",)}, "1 entry at dc2 not shown yet"),
        ({"lag_entries": 2, "lag_s": 6.0}, "dc2 has yet to confirm 2 entries of dc2"),
        ({"lag_entries": None, "lag_s": None}, "dc2 has yet to confirm entries of dc2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nodes_that_are_not_equal_in_time(
    served: ServedNode, other: ServedNode, invoke: Invoke, changes: dict[str, object], why: str
) -> None:
    for name, value in changes.items():
        setattr(other.report, name, value)
    result = invoke("status", "--wait-equal", "10ms", "--url", served.url, "--url", other.url)
    assert result.exit_code == 1
    assert result.stderr == f"waiting: {why}\nError: the nodes are not equal: {why}\n"
    assert "Nodes" in result.stdout
    assert invoke("status", "--url", served.url, "--url", other.url).exit_code == 0


def test_silent_node_is_not_equal_to_others(served: ServedNode, invoke: Invoke) -> None:
    result = invoke("status", "--wait-equal", "10ms", "--url", served.url, "--url", "http://127.0.0.1:1")
    assert (result.exit_code, "http://127.0.0.1:1: no answer" in result.stderr) == (1, True)


@pytest.mark.parametrize("options", [[], ["--watch", "1", "--url", "http://127.0.0.1:2"]])
def test_equality_needs_two_nodes_and_an_end(invoke: Invoke, options: list[str]) -> None:
    result = invoke("status", "--wait-equal", "1s", "--url", "http://127.0.0.1:1", *options)
    assert (result.exit_code, "needs at least two nodes" in result.stderr) == (2, True)
