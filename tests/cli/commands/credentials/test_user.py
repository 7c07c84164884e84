from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from replicator.config import config_text, default_config
from replicator.users import UserDirectory
from tests.cli.conftest import Invoke


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "dc1.toml"
    file.write_text(config_text(default_config("dc1", tmp_path), tmp_path))
    return file


async def test_user_is_added_changed_and_deleted(config: Path, invoke: Invoke) -> None:
    directory = UserDirectory(config.parent / "users.passwd")
    assert invoke("user", "add", "ann@example.org", "--config", config, typed="first\n").exit_code == 0
    assert await directory.verify("ann@example.org", "first")
    assert invoke("user", "passwd", "ann@example.org", "--config", config, typed="second\n").exit_code == 0
    assert await directory.verify("ann@example.org", "second")
    scram = invoke(
        "user", "passwd", "ann@example.org", "--scheme", "scram-sha-256", "--config", config, typed="third\n"
    )
    assert scram.exit_code == 0
    assert await directory.verify("ann@example.org", "third")
    assert directory.has_scram(for_all=True)
    assert invoke("user", "list", "--config", config).stdout == "ann@example.org\n"
    assert json.loads(invoke("user", "list", "--config", config, "--json").stdout) == ["ann@example.org"]
    assert invoke("user", "delete", "ann@example.org", "--config", config).exit_code == 0
    assert invoke("user", "list", "--config", config).stdout == ""


async def test_user_is_disabled_listed_and_enabled(config: Path, invoke: Invoke) -> None:
    directory = UserDirectory(config.parent / "users.passwd")
    assert invoke("user", "add", "ann", "--config", config, typed="first\n").exit_code == 0
    disabled = invoke("user", "disable", "Ann", "--config", config)
    assert (disabled.exit_code, "user ann disabled; mail is still accepted" in disabled.stderr) == (0, True)
    assert not await directory.verify("ann", "first")
    assert "no: disabled" in invoke("user", "list", "--long", "--config", config).stdout
    [account] = json.loads(invoke("user", "list", "--long", "--json", "--config", config).stdout)
    assert (account["user"], account["disabled"], account["cluster"]) == ("ann", True, None)
    assert account["origin"] == str(config.parent / "users.passwd")
    shown = invoke("user", "show", "Ann+x@Example.org", "--json", "--config", config)
    assert json.loads(shown.stdout) == account
    shown = invoke("user", "show", "ann", "--config", config)
    assert "no: disabled" in shown.stdout
    assert f"ann comes from {account['origin']}\n" in shown.stdout
    nobody = invoke("user", "show", "eve", "--config", config)
    assert (nobody.exit_code, "there is no user 'eve'" in nobody.stderr) == (1, True)
    assert invoke("user", "enable", "ann", "--config", config).exit_code == 0
    [account] = json.loads(invoke("user", "list", "--long", "--json", "--config", config).stdout)
    assert not account["disabled"]
    assert await directory.verify("ann", "first")


async def test_user_is_renamed_and_listed_with_the_name_of_the_mail(config: Path, invoke: Invoke) -> None:
    directory = UserDirectory(config.parent / "users.passwd")
    for user in ("ann", "bob"):
        assert invoke("user", "add", user, "--config", config, typed="first\n").exit_code == 0
    assert "mail of" not in invoke("user", "list", "--long", "--config", config).stdout
    renamed = invoke("user", "rename", "Ann", "Anna", "--config", config)
    assert renamed.exit_code == 0, renamed.output
    assert f"{directory.accounts()[0].origin}: user ann renamed to anna; the mail stays that of the user ann\n" in (
        renamed.stderr
    )
    assert "mail for ann is refused, unless an alias says: ann@DOMAIN anna\n" in renamed.stderr
    login = await directory.verify("anna", "first")
    assert login
    assert login.user == "ann"
    listed = json.loads(invoke("user", "list", "--long", "--json", "--config", config).stdout)
    assert [(one["user"], one["mail_user"]) for one in listed] == [("anna", "ann"), ("bob", "bob")]
    assert "mail of" in invoke("user", "list", "--long", "--config", config).stdout
    assert "mail of" in invoke("user", "show", "anna", "--config", config).stdout
    by_mail = json.loads(invoke("user", "show", "Ann", "--json", "--config", config).stdout)
    assert (by_mail["user"], by_mail["mail_user"]) == ("anna", "ann")
    refused = invoke("user", "add", "ann", "--config", config, typed="x\n")
    assert (refused.exit_code, "'ann' is the user whose mail 'anna' opens" in refused.stderr) == (1, True)
    back = invoke("user", "rename", "anna", "ann", "--config", config)
    assert (back.exit_code, "the mail is that of the name again" in back.stderr) == (0, True)
    assert invoke("user", "list", "--config", config).stdout == "ann\nbob\n"
    whole = invoke("user", "rename", "ann", "ann@example.org", "--config", config)
    assert whole.exit_code == 0
    again = invoke("user", "rename", "ann@example.org", "anna", "--config", config)
    assert "unless an alias says: ann@example.org anna\n" in again.stderr


async def test_who_else_opens_the_mail_of_a_disabled_or_deleted_user_is_told(config: Path, invoke: Invoke) -> None:
    lines = "team:*\nann:*::::::user=team\nbob:*::::::user=team\neve:*\n"
    await trio.Path(config.parent / "users.passwd").write_text(lines)

    def told(*arguments: str) -> str:
        done = invoke("user", *arguments, "--config", config)
        assert done.exit_code == 0, done.output
        return done.stderr

    others = "the mail of team is still open to other log-in names, which this does not change: bob, team\n"
    assert told("disable", "ann").endswith(f"user ann disabled; mail is still accepted\n{others}")
    assert told("delete", "ann").endswith(f"user ann deleted\n{others}")
    assert told("delete", "team").endswith("which this does not change: bob\n")
    purge = "the mail is that of the user team, and stays; `replicator user purge team` removes it\n"
    assert told("delete", "bob").endswith(f"user bob deleted\n{purge}")
    assert told("disable", "eve").endswith("disabled; mail is still accepted\n")
    assert told("delete", "eve").endswith("user eve deleted\n")


async def test_user_logs_in_from_the_networks_of_the_option_only(config: Path, invoke: Invoke) -> None:
    directory = UserDirectory(config.parent / "users.passwd")
    wrong = invoke("user", "add", "ann", "--allow-nets", "192.0.2.0/33", "--config", config, typed="x\n")
    assert (wrong.exit_code, "allow_nets: expected IP addresses and networks" in wrong.stderr) == (2, True)
    added = invoke("user", "add", "ann", "--allow-nets", "192.0.2.0/24,::1", "--config", config, typed="x\n")
    assert added.exit_code == 0
    assert await directory.verify("ann", "x", address="::1")
    assert not await directory.verify("ann", "x", address="::2")


async def test_master_users_have_a_file_of_their_own(config: Path, invoke: Invoke) -> None:
    refused = invoke("user", "add", "admin", "--masters", "--config", config, typed="mighty\n")
    assert (refused.exit_code, "name the file of master users" in refused.stderr) == (1, True)
    text = (await trio.Path(config).read_text()).replace("[users]\n", '[users]\nmaster_passwd_file = "masters"\n')
    await trio.Path(config).write_text(text)
    assert "has no master users until" in invoke("config", "check", config).stderr
    assert invoke("user", "add", "admin", "--masters", "--config", config, typed="mighty\n").exit_code == 0
    assert invoke("user", "add", "ann", "--config", config, typed="x\n").exit_code == 0
    assert invoke("user", "list", "--masters", "--config", config).stdout == "admin\n"
    assert invoke("user", "list", "--config", config).stdout == "ann\n"
    directory = UserDirectory(config.parent / "users.passwd", masters=config.parent / "masters")
    assert await directory.verify("admin", "mighty", as_user="ann")


def test_impossible_changes_of_users_are_refused(config: Path, invoke: Invoke) -> None:
    for arguments, typed, words in [
        (("add", "ann"), "", "no password"),
        (("add", "a:b"), "secret\n", "no colon"),
        (("passwd", "ann"), "secret\n", "not changed"),
        (("delete", "ann"), "", "not changed"),
        (("disable", "ann"), "", "not changed"),
        (("enable", "ann"), "", "not changed"),
        (("list",), "", "No such file"),
    ]:
        result = invoke("user", *arguments, "--config", config, typed=typed)
        assert (result.exit_code, words in result.stderr) == (1, True), (arguments, result.output)
    assert invoke("user", "add", "ann", "--config", config, typed="x\n").exit_code == 0
    twice = invoke("user", "add", "ann", "--config", config, typed="x\n")
    assert (twice.exit_code, "already exists" in twice.stderr) == (1, True)
    louder = invoke("user", "add", "ANN", "--config", config, typed="x\n")
    assert (louder.exit_code, "already exists" in louder.stderr) == (1, True)


def test_user_names_become_lower_case(config: Path, invoke: Invoke) -> None:
    assert "user ann added" in invoke("user", "add", "Ann", "--config", config, typed="x\n").stderr
    assert invoke("user", "list", "--config", config).stdout == "ann\n"
    assert "password of ann set" in invoke("user", "passwd", "aNN", "--config", config, typed="y\n").stderr
    assert "user ann deleted" in invoke("user", "delete", "ANN", "--config", config).stderr


def test_usage(invoke: Invoke) -> None:
    assert invoke("user", "add", "ann").exit_code == 2
    assert invoke("user", "list", "--config", "/nowhere.toml").exit_code == 2
    assert invoke("usr").exit_code == 2
