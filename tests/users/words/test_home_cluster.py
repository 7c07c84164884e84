"""Users of a site of several clusters, in one passwd-file."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicator.errors import OtherClusterError
from replicator.users import Identity, Login, Site, UserDirectory

FAR_MS = 1 << 60
EAST = Site("east")


USERS = "alice:{PLAIN}a::::::cluster=east\nbob:{PLAIN}b:cluster=west quota_messages=7\ncarol:{PLAIN}c\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    path.write_text(USERS)
    return path


@pytest.mark.parametrize(("cluster", "here", "elsewhere"), [("east", "alice", "bob"), ("west", "bob", "alice")])
async def test_a_user_has_mail_in_one_cluster(file: Path, cluster: str, here: str, elsewhere: str) -> None:
    users = UserDirectory(file, site=Site(cluster))
    assert users.problems() == []
    for user in (here, "carol"):
        assert users.find(f"{user}+detail@example.org") == user
        assert await users.verify(user, user[0]) is not None
        assert await users.admit(user, Identity(user, FAR_MS)) is not None
    with pytest.raises(OtherClusterError, match=f"the mail of {elsewhere} is in another cluster"):
        users.find(elsewhere)
    for login in (users.verify(elsewhere, elsewhere[0]), users.admit(elsewhere, Identity(elsewhere, FAR_MS))):
        with pytest.raises(OtherClusterError):
            await login
    assert (await users.quota_limits("bob")).messages == 7


async def test_who_does_not_know_the_password_learns_nothing_about_the_cluster(file: Path) -> None:
    users = UserDirectory(file, site=EAST)
    assert await users.verify("bob", "wrong") is None
    assert await users.admit("bob", None) is None
    assert await users.verify("nobody", "wrong") is None


async def test_users_of_all_clusters_are_known_to_whoever_asks_for_proxies(file: Path) -> None:
    users = UserDirectory(file, site=EAST)
    assert [users.home_of(name) for name in ("Alice", "bob@example.org", "carol", "nobody")] == [
        ("alice", "east"),
        ("bob", "west"),
        ("carol", "east"),
        None,
    ]
    assert await users.verify_anywhere("bob", "b") is not None
    assert await users.verify_anywhere("bob", "wrong") is None


async def test_sessions_of_a_user_who_has_moved_end(file: Path) -> None:
    users = UserDirectory(file, site=EAST)
    login = await users.verify("carol", "c")
    assert login is not None
    assert users.holds(login)
    await trio.Path(file).write_text(USERS.replace("{PLAIN}c", "{PLAIN}c:cluster=west"))
    assert not users.holds(login)
    assert users.holds(Login("alice", until_ms=FAR_MS))


@pytest.mark.parametrize("word", ["cluster=", "cluster=a/b", "cluster=east cluster=west", f"cluster={65 * 'a'}"])
async def test_a_word_without_sense_is_reported_and_no_cluster_has_the_user(tmp_path: Path, word: str) -> None:
    file = tmp_path / "users.passwd"
    file.write_text(f"alice:{{PLAIN}}a::{word}\n")
    for cluster in ("east", "west"):
        users = UserDirectory(file, site=Site(cluster, has_others=True))
        with pytest.raises(OtherClusterError):
            users.find("alice")
        [problem] = users.problems()
        assert problem.startswith(f"{file}:1: cluster: expected one name")


async def test_at_a_site_of_several_clusters_a_user_without_the_word_has_mail_in_none(file: Path) -> None:
    for cluster in ("east", "west"):
        users = UserDirectory(file, site=Site(cluster, has_others=True))
        with pytest.raises(OtherClusterError):
            users.find("carol")
        assert users.home_of("carol") == ("carol", "")
        [problem] = users.problems()
        assert problem.startswith(f"{file}: 1 users name no cluster, and so have mail in none")
        assert problem.endswith("that of carol")
    assert UserDirectory(file, site=Site("west")).home_of("carol") == ("carol", "west")
    assert UserDirectory(file, site=Site("west")).problems() == []
