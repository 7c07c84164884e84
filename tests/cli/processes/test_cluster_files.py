from __future__ import annotations

import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.cli.processes.cluster_files import FIRST_PORTS, FIRST_USERS, HOST, check_directory, logins, prepare
from replicator.cli.target import CommandError, ConfigurationError
from replicator.config import Address, config_text
from replicator.network.certificates import Certificates
from replicator.users import add_user, delete_user, set_password


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_new_cluster_knows_all_its_nodes_and_users(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "cluster"
    nodes = prepare(directory, 3)
    assert [node.sid for node in nodes] == ["dc1", "dc2", "dc3"]
    listens = [node.config.listen for node in nodes]
    doors = [door for listen in listens for door in (listen.peer, listen.imap, listen.lmtp, listen.http)]
    assert None not in doors
    assert len(set(doors)) == 12
    for node in nodes:
        others = {other.sid: other.config.listen.peer for other in nodes if other is not node}
        assert {peer.id: peer.address for peer in node.config.peers} == others
        assert node.config.users.passwd_file == directory / "users.passwd"
        assert node.config.durability.copies == 2
    users = logins(directory, directory / "users.passwd")
    assert tuple(login.user for login in users) == FIRST_USERS
    assert len({login.password for login in users} - {None}) == 3
    for name in ("passwords.txt", "users.passwd"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600


def test_nodes_of_a_new_cluster_have_certificates_of_one_authority(tmp_path: Path) -> None:
    nodes = prepare(tmp_path, 2)
    for node in nodes:
        tls = node.config.tls
        assert tls is not None
        assert tls.ca == tmp_path / "ca" / "ca.pem"
        assert Certificates(tls).own().name == node.sid
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600


def test_existing_cluster_without_certificates_stays_without(tmp_path: Path) -> None:
    (node,) = prepare(tmp_path, 1)
    node.file.write_text(config_text(replace(node.config, tls=None), tmp_path), "utf-8")
    assert prepare(tmp_path, None)[0].config.tls is None


def test_lost_certificate_is_reported_before_any_node_starts(tmp_path: Path) -> None:
    prepare(tmp_path, 2)
    (tmp_path / "ca" / "dc2.pem").unlink()
    with pytest.raises(ConfigurationError, match=r"dc2\.toml:\d+: certificate: there is no file"):
        prepare(tmp_path, None)


def test_interrupted_creation_continues_with_the_certificates_that_it_made(tmp_path: Path) -> None:
    for node in prepare(tmp_path, 2):
        node.file.unlink()
    (tmp_path / "ca" / "dc2.pem").unlink()
    (tmp_path / "ca" / "dc2.key").unlink()
    before = snapshot(tmp_path / "ca")
    check_directory(tmp_path)
    prepare(tmp_path, 2)
    after = snapshot(tmp_path / "ca")
    assert before.items() < after.items()
    assert len(after) == 6


def test_creation_that_was_interrupted_within_its_certificates_begins_them_again(tmp_path: Path) -> None:
    begun = tmp_path / "ca.new"
    begun.mkdir()
    (begun / "ca.key").write_text("half of a CA")
    check_directory(tmp_path)
    assert [node.config.tls and node.config.tls.ca for node in prepare(tmp_path, 2)] == [tmp_path / "ca" / "ca.pem"] * 2
    assert not begun.exists()


def test_directory_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = prepare(Path("var"), 2)
    assert [node.file for node in nodes] == [Path("var/dc1.toml"), Path("var/dc2.toml")]
    assert [node.config.tls and node.config.tls.ca for node in nodes] == [tmp_path / "var" / "ca" / "ca.pem"] * 2


def test_existing_cluster_is_left_unchanged(tmp_path: Path) -> None:
    first = prepare(tmp_path, 11)
    assert [node.sid for node in first] == [f"dc{number}" for number in range(1, 12)]
    before = snapshot(tmp_path)
    assert [prepare(tmp_path, nodes) for nodes in (None, 11)] == [first, first]
    assert snapshot(tmp_path) == before
    with pytest.raises(CommandError, match=r"cluster of 11 nodes .*--nodes 11"):
        prepare(tmp_path, 3)


def test_directory_of_other_files_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("words")
    with pytest.raises(
        CommandError, match=r"this directory has other files \(thesis.txt\) and no cluster; use another --dir"
    ):
        check_directory(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_empty_interrupted_and_existing_clusters_are_accepted(tmp_path: Path) -> None:
    check_directory(tmp_path / "none")
    check_directory(tmp_path)
    (tmp_path / "users.passwd").write_text("")  # a first run that was interrupted, or users brought along
    check_directory(tmp_path)
    prepare(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("words")
    check_directory(tmp_path)


def test_single_node_needs_no_other(tmp_path: Path) -> None:
    [node] = prepare(tmp_path, 1)
    assert (node.config.peers, node.config.durability.copies) == ((), 1)


def test_ports_in_use_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr("replicator.cli.processes.cluster_files.FIRST_PORTS", dict.fromkeys(FIRST_PORTS, taken))
        [node] = prepare(tmp_path, 1)
    listen = node.config.listen
    ports = [door.port for door in (listen.peer, listen.imap, listen.lmtp, listen.http) if isinstance(door, Address)]
    assert len(set(ports)) == 4
    assert min(ports) > taken


def test_passwords_are_shown_until_they_are_changed(tmp_path: Path) -> None:
    prepare(tmp_path, 1)
    passwd_file = tmp_path / "users.passwd"
    set_password(passwd_file, "alice", "another")
    delete_user(passwd_file, "bob")
    add_user(passwd_file, "dave", "his own")
    shown = {login.user: login.password is not None for login in logins(tmp_path, passwd_file)}
    assert shown == {"alice": False, "carol": True, "dave": False}


def test_broken_configuration_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "dc1.toml").write_text("[nodes]\n")
    with pytest.raises(ConfigurationError, match=r"dc1\.toml:1: "):
        prepare(tmp_path, None)


def test_impossible_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="--dir"):
        prepare(tmp_path / "file" / "below", 1)
