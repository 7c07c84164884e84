from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from replicator.config import (
    Config,
    ConflictConfig,
    ListenConfig,
    MastershipConfig,
    PeerConfig,
    Scope,
    SocketPath,
    UidConflict,
    UsersConfig,
    UserSource,
    config_text,
    default_config,
    load_config,
)
from tests.cli.conftest import Invoke
from tests.end_to_end.helpers.certificates import certificate

SIDS = ("dc1", "dc2", "dc3")


def nodes(directory: Path) -> dict[str, Config]:
    """Return the configurations of three nodes that fit each other."""
    sockets = {sid: SocketPath(directory / f"{sid}.sock") for sid in SIDS}
    return {
        sid: default_config(
            sid,
            directory,
            listen=ListenConfig(peer=sockets[sid]),
            peers=tuple(PeerConfig(other, sockets[other]) for other in SIDS if other != sid),
        )
        for sid in SIDS
    }


def written(directory: Path, configs: dict[str, Config]) -> list[Path]:
    files = [directory / f"{sid}.toml" for sid in configs]
    for file, config in zip(files, configs.values(), strict=True):
        file.write_text(config_text(config, directory))
    return files


def test_configurations_that_fit_each_other_have_no_problems(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "users.passwd").write_text("ann:*\n")
    checked = invoke("config", "check", *written(tmp_path, nodes(tmp_path)))
    assert (checked.exit_code, checked.stdout, checked.stderr) == (0, "no problems found\n", "")


def test_what_nodes_do_not_agree_on_is_named(tmp_path: Path, invoke: Invoke) -> None:
    made = nodes(tmp_path)
    made["dc1"] = replace(made["dc1"], conflict=ConflictConfig(UidConflict.UIDVALIDITY))
    made["dc2"] = replace(
        made["dc2"],
        mastership=MastershipConfig(Scope.USER),
        peers=made["dc2"].peers[:1],
        durability=made["dc1"].durability,
    )
    made["dc3"] = replace(made["dc3"], users=UsersConfig(made["dc3"].node.cluster_users, UserSource.CLUSTER))
    checked = invoke("config", "check", *written(tmp_path, made))
    assert checked.exit_code == 2
    scope, uid, source = (
        "scope in [mastership] is 'mailbox' at dc1 and 'user' at dc2; it must be the same, because",
        "uid in [conflict] is 'uidvalidity' at dc1 and 'renumber' at dc2; it must be the same",
        "source in [users] is 'file' at dc1 and 'cluster' at dc3; it must be the same, because users would differ",
    )
    found = checked.stderr.splitlines()
    assert found[0].startswith(scope)
    assert found[1].startswith(uid)
    assert found[3] == source
    assert found[-1] == "dc2 does not list dc3 as a [[peer]]; nodes list each other"
    assert len(found) == 7
    again = invoke("config", "check", "--json", *written(tmp_path, made))
    assert json.loads(again.stdout) == found


def test_a_node_that_is_not_told_of_a_removal_is_named(tmp_path: Path, invoke: Invoke) -> None:
    made = nodes(tmp_path)
    (tmp_path / "users.passwd").write_text("ann:*\n")
    for sid, removed in {"dc1": ("dc7", "dc8"), "dc2": ("dc8",), "dc3": ("dc8",)}.items():
        made[sid] = replace(made[sid], node=replace(made[sid].node, removed=removed))
    checked = invoke("config", "check", *written(tmp_path, made))
    assert checked.exit_code == 2
    assert checked.stderr.splitlines() == [
        f"dc1 has dc7 in `removed` of [node], and {sid} has not: the log of {sid} waits for dc7"
        for sid in ("dc2", "dc3")
    ]


def test_files_that_may_come_later_are_named_and_are_no_problems(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "dc1.toml"
    file.write_text('node.id = "dc1"\nusers.passwd_file = "user.passwd"\nhttp.tokens = "http.tokens"\n')
    checked = invoke("config", "check", file)
    assert (checked.exit_code, checked.stdout) == (0, "no problems found\n")
    users, tokens = checked.stderr.splitlines()
    assert users.startswith(f"{tmp_path / 'user.passwd'}: not there yet; dc1 has no users until")
    assert tokens.startswith(f"{tmp_path / 'http.tokens'}: not there yet; dc1 accepts no token until")
    assert json.loads(invoke("config", "check", "--json", file).stdout) == []


def test_aliases_without_users_are_named_once(tmp_path: Path, invoke: Invoke) -> None:
    file, aliases = tmp_path / "dc1.toml", tmp_path / "aliases"
    (tmp_path / "users.passwd").write_text("ann:*\n")
    file.write_text('node.id = "dc1"\nlmtp.aliases = "aliases"\n')
    assert "lmtp.aliases" in (missing := invoke("config", "check", file).stderr) or "there is no file" in missing
    aliases.write_text("info ann\n#\nsales boss@elsewhere.example\n")
    result = invoke("config", "check", file)
    assert result.exit_code == 2
    told = f"{aliases}:3: boss@elsewhere.example is no user here, and the node sends no mail elsewhere"
    assert result.stderr.count(told) == 1
    aliases.write_text("info ann\n")
    assert invoke("config", "check", file).exit_code == 0


def test_one_file_twice_is_two_nodes_of_one_id(tmp_path: Path, invoke: Invoke) -> None:
    file = written(tmp_path, nodes(tmp_path))[0]
    checked = invoke("config", "check", file, file)
    assert (checked.exit_code, "two files are for 'dc1'" in checked.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "passwd", "words"),
    [
        ('[node]\nid = "A"\n[log]\nkeep = 1', "", ["x.toml:2: id:", "x.toml:4: keep:"]),
        ('node.id = "a"', "ann:{NO}x\nann:*\n", ["users.passwd:1:", "users.passwd:2:"]),
        ('node.id = "a"\n[tls]\ncertificate = "c"\nkey = "k"\nca = "ca"', "", ["x.toml:3: certificate"]),
        (
            'node.id = "a"\n[tls]\ncertificate = "users.passwd"\nkey = "users.passwd"\nca = "users.passwd"',
            "ann:*\n",
            ["x.toml:2: [tls]: cannot "],
        ),
    ],
)
def test_every_problem_of_a_file_is_named(
    tmp_path: Path, invoke: Invoke, text: str, passwd: str, words: list[str]
) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    if passwd:
        (tmp_path / "users.passwd").write_text(passwd)
    checked = invoke("config", "check", file)
    assert checked.exit_code == 2
    assert [word for word in words if word not in checked.stderr] == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("good", None),
        ("expired", "dc1.pem has expired (dc1, until 2026-01-01); renew it"),
        ("another CA's", "dc1.pem is not signed by this node's [tls] ca; all nodes need certificates of one CA (dc1, "),
        ("another node's", "dc1.pem names dc2, localhost, but this node is dc1: the common name or a DNS"),
    ],
)
def test_a_certificate_that_other_nodes_would_refuse_is_a_problem(
    tmp_path: Path, invoke: Invoke, what: str, said: str | None
) -> None:
    ca, other = trustme.CA(), trustme.CA()
    end = datetime(2026, 1, 1, tzinfo=UTC) if what == "expired" else None
    sid = "dc2" if what == "another node's" else "dc1"
    tls = certificate(other if what == "another CA's" else ca, tmp_path, sid, not_after=end)
    if sid != "dc1":
        tls = replace(tls, certificate=tls.certificate.rename(tmp_path / "dc1.pem"))
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = replace(nodes(tmp_path)["dc1"], tls=replace(tls, ca=tmp_path / "ca.pem"))
    checked = invoke("config", "check", *written(tmp_path, {"dc1": made}))
    if said is None:
        assert (checked.exit_code, checked.stdout) == (0, "no problems found\n")
    else:
        assert checked.exit_code == 2
        file = tmp_path / "dc1.toml"
        line = file.read_text("utf-8").splitlines().index("[tls]") + 1
        assert checked.stderr.startswith(f"{file}:{line}: {tmp_path / said}")
        assert checked.stderr.count("\n") == 1


def test_what_is_shown_means_the_same(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "x.toml"
    file.write_text('node.id = "a"\nlog.keep = "3h"\n')
    shown = invoke("config", "show", file)
    assert (shown.exit_code, 'keep = "3h"' in shown.stdout, "max_size" in shown.stdout) == (0, True, True)
    before = load_config(file)
    file.write_text(shown.stdout)
    assert load_config(file) == before
