"""`replicator peer` at a node that does not run, and at files that must stay as they are."""

from pathlib import Path

import pytest

from replicator.cli.commands.nodes.peer import _is_absent
from tests.cli.conftest import Invoke

TEXT = '[node]\nid = "dc1" # here\n\n[[peer]]\nid = "dc2"\naddress = "127.0.0.1:2"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "dc1.toml"
    file.write_text(TEXT)
    file.chmod(0o640)
    return file


def test_file_of_a_node_that_does_not_run_is_changed(file: Path, invoke: Invoke) -> None:
    added = invoke("peer", "add", "dc3", "127.0.0.1:3", "--config", file)
    assert (added.exit_code, added.stdout) == (0, "")
    assert added.stderr == f"{file}: dc3 is a peer; the node does not run, and do the same at each other node\n"
    assert file.read_text() == f'{TEXT}\n[[peer]]\nid = "dc3"\naddress = "127.0.0.1:3"\n'
    assert file.stat().st_mode & 0o777 == 0o640
    removed = invoke("peer", "remove", "dc3", "--config", file)
    assert (removed.exit_code, "dc3 is no peer any more" in removed.stderr) == (0, True)
    assert file.read_text() == TEXT.replace("# here\n", '# here\nremoved = ["dc3"]\n') + "\n"
    assert list(file.parent.iterdir()) == [file]


def test_target_of_a_link_is_changed_and_the_link_stays(file: Path, invoke: Invoke) -> None:
    link = file.parent / "link.toml"
    link.symlink_to(file)
    assert invoke("peer", "remove", "dc2", "--config", link).exit_code == 0
    assert link.is_symlink()
    assert 'removed = ["dc2"]' in file.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "dc2", "127.0.0.1:3"], "dc2 is a peer already, at 127.0.0.1:2"),
        (["add", "dc3", "127.0.0.1:2"], "127.0.0.1:2 is already the address of a peer above"),
        (["add", "dc3", "dc3.example.org:2"], "is on another machine, so it needs a [tls] section"),
        (["remove", "dc3"], "dc3 is no peer of dc1; its peers: dc2"),
    ],
)
def test_wrong_change_leaves_the_file_as_it_is(file: Path, invoke: Invoke, words: list[str], told: str) -> None:
    refused = invoke("peer", *words, "--config", file)
    assert refused.exit_code == 2
    assert told in refused.stderr
    assert f"{file} stays as it is" in refused.stderr
    assert file.read_text() == TEXT


def test_file_that_cannot_be_replaced_is_named(file: Path, invoke: Invoke) -> None:
    long = file.rename(file.parent / f"{'d' * 245}.toml")  # no temporary file can have a longer name beside it
    refused = invoke("peer", "add", "dc3", "127.0.0.1:3", "--config", long)
    assert refused.exit_code == 1
    assert "stays as it is, because it cannot be changed here: File name too long; if it is written" in refused.stderr
    assert long.read_text() == TEXT
    assert list(file.parent.iterdir()) == [long]


def test_file_that_is_written_elsewhere_is_left_alone(file: Path, invoke: Invoke) -> None:
    file.write_text(f"# Ansible managed\n{TEXT}")
    refused = invoke("peer", "add", "dc3", "127.0.0.1:3", "--config", file)
    assert (refused.exit_code, "change it there, and then run `replicator reload`" in refused.stderr) == (2, True)
    assert file.read_text() == f"# Ansible managed\n{TEXT}"


def test_socket_that_cannot_be_looked_at_may_be_there(file: Path) -> None:
    """Then the node may run, as another user, with links that a change must not overlook."""
    assert _is_absent(file.parent / "http.sock")
    assert not _is_absent(file)
    assert not _is_absent(file / "http.sock")
