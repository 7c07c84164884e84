import os
import re
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from replicator.config import (
    Address,
    CertificateConfig,
    CheckpointConfig,
    ClientCertificatesConfig,
    ClusterConfig,
    Config,
    ListenConfig,
    MastershipConfig,
    NodeConfig,
    PeerConfig,
    ProxyConfig,
    QuotaConfig,
    Scope,
    SocketPath,
    TlsConfig,
    UidConflict,
    WhenFull,
    WhenShort,
    default_config,
    load_config,
)
from replicator.errors import ConfigError

EXAMPLE = """\
[node]
id = "dc1"
data = "dc1"                       # relative to this file
cluster = "mail"

[listen]                           # leave a line out to switch that listener off
peer = "127.0.0.1:4420"
imap = "127.0.0.1:1143"
lmtp = "127.0.0.1:1024"
http = "127.0.0.1:1080"

[[peer]]
id = "dc2"
address = "127.0.0.1:4421"

[durability]
copies = 2
when_short = "proceed"

[mastership]
scope = "mailbox"
heartbeat = "1s"
timeout = "4s"

[users]
passwd_file = "users.passwd"

[conflict]
uid = "renumber"

[log]
keep = "7d"
max_size = "1GiB"

[content]
inline_max = "64KiB"
keep_expunged = "14d"

[checkpoint]
url = "file:checkpoints"
"""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the defaults be those of a small machine."""
    has_cores(monkeypatch, 2)


def has_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(cores)))


DOVECOT = '[[dovecot]]\naddress = "127.0.0.1:{port}"\npassword_file = "p"\n'


def load(directory: Path, text: str) -> Config:
    file = directory / "node.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(directory, text)
    return [line.removeprefix(f"{directory / 'node.toml'}:") for line in str(caught.value).split("\n")]


def test_example_states_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, EXAMPLE)
    assert config == default_config(
        "dc1",
        tmp_path,
        listen=ListenConfig(
            peer=Address("127.0.0.1", 4420),
            imap=Address("127.0.0.1", 1143),
            lmtp=Address("127.0.0.1", 1024),
            http=Address("127.0.0.1", 1080),
        ),
        peers=(PeerConfig("dc2", Address("127.0.0.1", 4421)),),
    )
    assert config.node == NodeConfig("dc1", tmp_path / "dc1", "mail", 100)
    assert config.users.passwd_file == tmp_path / "users.passwd"
    assert config.checkpoint.url == f"file://{tmp_path}/checkpoints"
    assert (config.log.keep_s, config.log.max_size_bytes) == (7 * 86400, 1024**3)
    assert (config.content.inline_max_bytes, config.content.keep_expunged_s) == (65536, 14 * 86400)
    assert config.mastership == MastershipConfig(Scope.MAILBOX, 1.0, 4.0)


def test_single_node_needs_only_its_id(tmp_path: Path) -> None:
    config = load(tmp_path, 'node.id = "only"')
    assert config == default_config("only", tmp_path)
    assert config.durability.copies == 1
    assert config.listen == ListenConfig(None, None, None, None)


@pytest.mark.parametrize(("cores", "doors"), [(1, 0), (2, 0), (3, 2), (4, 3), (9, 8), (64, 8)])
def test_doors_have_all_cores_but_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, doors: int) -> None:
    has_cores(monkeypatch, cores)
    assert load(tmp_path, '[node]\nid = "dc1"\n').workers.doors == doors


def test_every_key_can_differ_from_its_default(tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem", "ca.pem"):
        (tmp_path / name).touch()
    config = load(
        tmp_path,
        """
        [node]
        id = "a"
        data = "/var/mail/a"
        cluster = "Other_1"
        priority = 3
        [listen]
        peer = "[::]:1"
        imap = "0.0.0.0:0"
        [[peer]]
        id = "b"
        address = "mail.example:2"
        [durability]
        copies = 1
        when_short = "refuse"
        [mastership]
        scope = "dynamic"
        heartbeat = "250ms"
        timeout = "1.5s"
        [users]
        passwd_file = "../p"
        [conflict]
        uid = "uidvalidity"
        [log]
        keep = "36h"
        max_size = "10MiB"
        [content]
        inline_max = "0B"
        keep_expunged = "90m"
        [quota]
        storage = "10GiB"
        messages = 100000
        when_full = "defer"
        [search]
        full_text = false
        [workers]
        doors = 8
        [checkpoint]
        url = "s3://bucket/prefix"
        endpoint = "https://objects.example:9000/"
        shared = true
        [tls]
        certificate = "c.pem"
        key = "k.pem"
        ca = "ca.pem"
        """,
    )
    assert config.node == NodeConfig("a", Path("/var/mail/a"), "Other_1", 3)
    assert config.listen == ListenConfig(peer=Address("::", 1), imap=Address("0.0.0.0", 0))
    assert config.peers == (PeerConfig("b", Address("mail.example", 2)),)
    assert (config.durability.copies, config.durability.when_short) == (1, WhenShort.REFUSE)
    assert config.mastership == MastershipConfig(Scope.DYNAMIC, 0.25, 1.5)
    assert config.users.passwd_file == tmp_path / "../p"
    assert config.conflict.uid is UidConflict.UIDVALIDITY
    assert (config.log.keep_s, config.log.max_size_bytes) == (129600, 10 * 1024**2)
    assert (config.content.inline_max_bytes, config.content.keep_expunged_s) == (0, 5400)
    assert not config.search.full_text
    assert config.workers.doors == 8
    assert config.quota == QuotaConfig(10 * 1024**3, 100_000, WhenFull.DEFER)
    assert config.checkpoint == CheckpointConfig("s3://bucket/prefix", "https://objects.example:9000", shared=True)
    assert config.tls is not None
    assert config.tls.ca == tmp_path / "ca.pem"


def test_relative_paths_start_at_the_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "n.toml").write_text('node.id = "x"')
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("sub/n.toml")) == default_config("x", tmp_path / "sub")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: 'id' is missing in [node]: add, for example, id = \"dc1\""),
        ('\n\n[node]\ncluster = "x"', "3: 'id' is missing in [node]"),
        ('[node]\nid = "DC1"', "2: id: expected a node id"),
        ('[node]\nid = "dc.1"', "2: id: expected a node id"),
        ('[node]\nid = "dc 1"', "2: id: expected a node id"),
        (f'[node]\nid = "{"x" * 33}"', "2: id: expected a node id"),
        ("[node]\nid = 1", "2: id: expected a node id: 1 to 32 of a-z, 0-9 and -, for example 'dc1'; not 1"),
        ('[node]\nid = "a"\ncluster = "a b"', "3: cluster: expected a cluster name"),
        ('[node]\nid = "a"\npriority = true', "3: priority: expected a whole number"),
        ('[node]\nid = "a"\nremoved = "b"', "3: removed: expected a list of at most 100 node ids"),
        ('[node]\nid = "a"\nremoved = ["B"]', "3: removed: expected a node id"),
        ('[node]\nid = "a"\nremoved = ["b", "a"]', "3: removed: 'a' is this node itself; remove it here"),
        ('[node]\nid = "a"\n[users]\nsource = "x"', "4: source: expected one of 'file', 'cluster'"),
        (
            '[node]\nid = "a"\n[users]\nsource = "cluster"\npasswd_file = "x"',
            "5: passwd_file: users come from the cluster",
        ),
        ('[node]\nid = "a"\n[users]\nmaster_separator = "*"', "4: master_separator: there are no master users without"),
        (
            '[node]\nid = "a"\n[users]\nmaster_passwd_file = "m"\nmaster_separator = "@"',
            "5: master_separator: expected one of these characters",
        ),
        ('[node]\nid = "a"\ndata = ""', "3: data: expected a path"),
        ('[node]\nid = "a"\ndata = 1', "3: data: expected a string in quotes, not 1"),
        ('node.id = "a"\nnode.dta = "x"', "2: unknown key 'dta' in [node]; the most similar one is 'data'"),
        ('node.id = "a"\n[node2]', "2: unknown section [node2]; the most similar one is [node]"),
        ('node.id = "a"\n[lsiten]\nimap = "x"', "2: unknown section [lsiten]; the most similar one is [listen]"),
        ('node.id = "a"\n[log]\ninline_max = "1B"', "3: unknown key 'inline_max' in [log]; it belongs in [content]"),
        (
            'node.id = "a"\n[log]\nca = "x"',
            "3: unknown key 'ca' in [log]; it belongs in [client_certificates] or [endpoint] or [ldap] or [oauth]",
        ),
        ('node.id = "a"\n[log]\nzzz = 1', "3: unknown key 'zzz' in [log]; the most similar one is "),
        ('node.id = "a"\nlog = 3', "2: log must be a section"),
        ('node.id = "a"\npeer = 3', "2: peer must be a list of sections"),
        ('node.id = "a"\n[peer]\nid = "b"', "2: peer must be a list of sections: write [[peer]]"),
        ('node.id = "a"\n[peer]\naddress = "127.0.0.1:1"', "2: peer must be a list of sections: write [[peer]]"),
        (
            'node.id = "a"\n[dovecot]\naddress = "127.0.0.1:1"\nreplicator = true',
            "2: dovecot must be a list of sections: write [[dovecot]]",
        ),
        ('node.id = "a"\n[listen]\nimap = "localhost"', "3: imap: expected an address such as"),
        ('node.id = "a"\n[listen]\nimap = "::1:1"', "3: imap: expected an address such as"),
        ('node.id = "a"\n[listen]\nimap = "h:65536"', "3: imap: expected a port from 0 to 65535"),
        ('node.id = "a"\n[listen]\nimap = "h:1"\nlmtp = "h:1"', "4: lmtp: h:1 is already used by 'imap'"),
        (
            'node.id = "a"\n[durability]\ncopies = 2',
            "3: copies: expected a whole number from 1 to 1 (this node and each [[peer]]), not 2",
        ),
        ('node.id = "a"\n[durability]\ncopies = "1"', "3: copies: expected a whole number from 1 to 1 (this node"),
        ('node.id = "a"\n[durability]\nwhen_short = "no"', "3: when_short: expected one of 'proceed', 'refuse'"),
        ('node.id = "a"\n[mastership]\nscope = "x"', "3: scope: expected one of 'mailbox', 'user'"),
        ('node.id = "a"\n[mastership]\nheartbeat = "3s"', "2: timeout: must be at least twice the heartbeat of 3 s"),
        ('node.id = "a"\n[mastership]\nheartbeat = 1', "3: heartbeat: expected a duration such as"),
        ('node.id = "a"\n[mastership]\nheartbeat = "1ms"', "3: heartbeat: expected a duration from 0.01s"),
        ('node.id = "a"\n[log]\nkeep = "1 d"', "3: keep: expected a duration such as"),
        ('node.id = "a"\n[log]\nkeep = "9999d"', "3: keep: expected a duration from 0s to 3650d"),
        ('node.id = "a"\n[log]\nmax_size = "1GB"', "3: max_size: expected a size such as"),
        ('node.id = "a"\n[log]\nmax_size = "1KiB"', "3: max_size: expected a size from 1048576"),
        ('node.id = "a"\n[content]\ninline_max = "1GiB"', "3: inline_max: expected a size from 0 to 1048576 bytes"),
        ('node.id = "a"\n[quota]\nstorage = "0B"', "3: storage: expected a size from 1 to"),
        ('node.id = "a"\n[quota]\nstorage = 10', "3: storage: expected a size such as"),
        ('node.id = "a"\n[quota]\nmessages = 0', "3: messages: expected a whole number from 1 to"),
        ('node.id = "a"\n[quota]\nwhen_full = "bounce"', "3: when_full: expected one of 'refuse', 'defer'"),
        ('node.id = "a"\n[conflict]\nuid = "x"', "3: uid: expected one of 'renumber', 'uidvalidity'"),
        ('node.id = "a"\n[checkpoint]\nurl = "http://x"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\n[checkpoint]\nurl = "file:///"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\n[checkpoint]\nurl = "s3://"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\n[checkpoint]\nurl = "s3://key:secret@b/p"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\n[checkpoint]\nurl = "s3://b/../p"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\n[checkpoint]\nurl = "s3://b//p"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\n[checkpoint]\nurl = "s3://b/p?x=1"', "3: url: expected 'file:DIRECTORY' or"),
        ('node.id = "a"\ncheckpoint.url = "s3://b"\ncheckpoint.endpoint = 1', "3: endpoint: expected an endpoint such"),
        ('node.id = "a"\ncheckpoint.shared = "yes"', "2: shared: expected true or false, not 'yes'"),
        ('node.id = "a"\ncheckpoint.endpoint = "https://u:p@h:1"', "2: endpoint: expected an endpoint such"),
        ('node.id = "a"\ncheckpoint.endpoint = "https://h:0"', "2: endpoint: expected an endpoint such"),
        ('node.id = "a"\ncheckpoint.endpoint = "http://h:1"', "2: endpoint: expected https"),
        ('node.id = "a"\ncheckpoint.endpoint = "https://h:1"', "2: endpoint: it is only for s3:// URLs"),
        ('node.id = "a"\n[tls]', "2: 'certificate' is missing in [tls]"),
        ('node.id = "a"\n[tls]\nmode = "off"', "3: mode: expected one of 'mutual', 'none'"),
        ('node.id = "a"\n[listen]\npeer = "0.0.0.0:1"', "3: peer: 0.0.0.0:1 can be reached from outside, so it needs"),
        (
            'node.id = "a"\n[listen]\ndoveadm = "127.0.0.1:1"',
            "3: doveadm: whoever connects there can change all mail, so it needs `password_file` in [doveadm]",
        ),
        (
            'node.id = "a"\n[listen]\ndoveadm = "0.0.0.0:1"\n[doveadm]\npassword_file = "secret"',
            "3: doveadm: 0.0.0.0:1 can be reached from outside, so it needs a [[certificate]]",
        ),
        (
            'node.id = "a"\n[listen]\nhttp = "0.0.0.0:1"',
            "3: http: 0.0.0.0:1 can be reached from outside, so it needs `tokens`",
        ),
        ('node.id = "a"\n[[peer]]\nid = "a"\naddress = "localhost:1"', "3: id: 'a' is this node itself"),
        ('node.id = "a"\n[[peer]]\naddress = "localhost:1"', "2: 'id' is missing in [peer]"),
        ('node.id = "a"\n[[peer]]\nid = "b"\naddress = "localhost:0"', "4: address: expected a port from 1 to"),
        (
            'node.id = "a"\n[[peer]]\nid = "b"\naddress = "b:1"',
            "4: address: b:1 is on another machine, so it needs a [tls]",
        ),
        (
            'node.id = "a"\n[listen]\npeer = "[::1]:1"\n[[peer]]\nid = "b"\naddress = "[::1]:1"',
            "6: address: [::1]:1 is this node's own address",
        ),
        (
            'node.id = "a"\n' + "".join(DOVECOT.format(port=port) for port in (1, 2)),
            "6: address: 127.0.0.1:2: there are several Dovecots at this host",
        ),
        (
            'node.id = "a"\n[[dovecot]]\naddress = "mail.example.org:1"\npassword_file = "p"\ntls = false',
            "5: tls: mail.example.org:1 is another machine",
        ),
        (
            'node.id = "a"\n[[dovecot]]\naddress = "127.0.0.1:1"\npassword_file = "p"\nca = "ca.pem"',
            "5: ca: it has no use without TLS",
        ),
        ("[node\nid = 3", "1: invalid TOML: Expected ']' at the end of a table declaration"),
        ('node.id = "a"\n\nnode.id = "b"', "3: invalid TOML: Cannot overwrite a value; the key is there twice"),
        ("[node]\nid = dc1", '2: invalid TOML: Invalid value; text stands in quotes, such as "dc1"'),
    ],
)
def test_each_problem_is_reported_with_line_and_remedy(tmp_path: Path, text: str, problem: str) -> None:
    assert any(line.startswith(problem) for line in problems(tmp_path, text)), problems(tmp_path, text)


def test_unterminated_string_is_reported_on_the_last_line(tmp_path: Path) -> None:
    assert problems(tmp_path, 'a = 1\nb = """x\n')[0].startswith("3: invalid TOML")


def test_all_problems_are_reported_at_once_in_file_order(tmp_path: Path) -> None:
    text = """\
    [node]
    id = "Bad"
    [[peer]]
    id = "b"
    address = "localhost:1"
    [[peer]]
    id = "b"
    address = "localhost:1"
    colour = "red"
    [durability]
    copies = 9
    [unheard]
    """
    lines = [problem.partition(":")[0] for problem in problems(tmp_path, text)]
    assert lines == ["2", "7", "8", "9", "11", "12"]


def test_links_between_machines_need_a_ca(tmp_path: Path) -> None:
    (tmp_path / "x.pem").touch()
    text = '[node]\nid = "a"\n[listen]\npeer = "0.0.0.0:1"\n[tls]\ncertificate = "x.pem"\nkey = "x.pem"\n'
    assert problems(tmp_path, text)[0].startswith("4: peer: ")
    assert load(tmp_path, f'{text}ca = "x.pem"').tls is not None


def test_links_by_sockets_need_no_tls(tmp_path: Path) -> None:
    text = 'node.id = "a"\nlisten.peer = "unix:a.sock"\n[[peer]]\nid = "b"\naddress = "unix:/run/b.sock"\n'
    config = load(tmp_path, text)
    assert config.listen.peer == SocketPath(tmp_path / "a.sock")
    assert [str(peer.address) for peer in config.peers] == ["unix:/run/b.sock"]


def test_sockets_are_for_peers_and_have_short_paths(tmp_path: Path) -> None:
    text = 'node.id = "a"\nlisten.imap = "unix:a.sock"\n[[peer]]\nid = "b"\naddress = "unix:/'
    first, second = problems(tmp_path, f'{text}{"x" * 107}"\n')
    assert first.startswith("2: imap: expected an address such as")
    assert second.startswith("5: address: expected a socket's path of at most 107 bytes, not '/xxx")


def test_links_between_machines_may_go_without_tls_if_that_is_written(tmp_path: Path) -> None:
    text = 'node.id = "a"\nlisten.peer = "0.0.0.0:1"\n[[peer]]\nid = "b"\naddress = "b:1"\n'
    assert [line.partition(":")[0] for line in problems(tmp_path, text)] == ["2", "5"]
    assert all('or with mode = "none", if nobody else' in line for line in problems(tmp_path, text))
    config = load(tmp_path, f'{text}[tls]\nmode = "none"')
    assert (config.tls, config.plain_links) == (None, True)
    assert not load(tmp_path, 'node.id = "a"').plain_links


@pytest.mark.parametrize("key", ["certificate", "key", "ca"])
def test_certificates_have_no_use_without_tls(tmp_path: Path, key: str) -> None:
    (tmp_path / "x.pem").touch()
    text = f'node.id = "a"\n[tls]\nmode = "none"\n{key} = "x.pem"'
    assert problems(tmp_path, text) == [f'4: {key}: it has no use with mode = "none"; leave one of the two out']


def test_port_0_may_be_used_twice(tmp_path: Path) -> None:
    config = load(tmp_path, 'node.id = "a"\nlisten.imap = "localhost:0"\nlisten.lmtp = "localhost:0"')
    assert config.listen.imap == config.listen.lmtp == Address("localhost", 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"a = '\xff'", "1: not UTF-8"), (b"# \n" * 400_000, " larger than")],
)
def test_binary_or_huge_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        load_config(file)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: the configuration cannot be read: No such file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("kind", ["directory", "loop", "pipe"])
def test_unreadable_passwd_file_is_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p"
    match kind:
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
    file = tmp_path / "node.toml"
    file.write_text('[node]\nid = "a"\n\n[users]\npasswd_file = "p"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(file, serving=True)
    assert str(caught.value).startswith(f"{file}:5: passwd_file: {path} cannot be read: ")
    assert load_config(file).users.passwd_file == path  # commands that ask a running node need not read it


@pytest.mark.parametrize("text", ["", "\n", "\r\nsecret\n"])
def test_an_empty_password_for_dovecots_is_reported(tmp_path: Path, text: str) -> None:
    file, password = tmp_path / "node.toml", tmp_path / "secret"
    file.write_text('node.id = "a"\n[doveadm]\npassword_file = "secret"\n')
    password.write_text(text, newline="")
    with pytest.raises(ConfigError) as caught:
        load_config(file, serving=True)
    assert str(caught.value).startswith(f"{file}:3: password_file: {password} has an empty first line; write")
    assert load_config(file).doveadm.password_file == password
    password.write_text("secret\n")
    assert load_config(file, serving=True).doveadm.password_file == password


def test_passwd_file_may_be_created_later(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node.id = "a"')
    assert load_config(file, serving=True) == default_config("a", tmp_path)
    (tmp_path / "users.passwd").write_text("")
    assert load_config(file, serving=True) == default_config("a", tmp_path)
    (tmp_path / "users.passwd").unlink()
    (tmp_path / "users.passwd").mkdir()
    with pytest.raises(ConfigError, match=r"node\.toml:1: passwd_file: "):
        load_config(file, serving=True)


@pytest.mark.parametrize(
    ("url", "parent"),
    [("file:wrong/checkpoints", "wrong"), ("file:{dir}/wrong/checkpoints", "wrong"), ("file:p/checkpoints", "p")],
)
def test_missing_parent_of_the_checkpoint_directory_is_reported(tmp_path: Path, url: str, parent: str) -> None:
    (tmp_path / "p").write_text("")  # no directory
    file = tmp_path / "node.toml"
    file.write_text(f'[node]\nid = "a"\n\n[checkpoint]\nurl = "{url.format(dir=tmp_path)}"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(file, serving=True)
    problem = f"{file}:5: url: the directory {tmp_path / parent} of 'checkpoints' does not exist;"
    assert str(caught.value).startswith(problem)
    load_config(file)  # commands that ask a running node need none


@pytest.mark.parametrize("url", ["file:there/checkpoints", "file:a/checkpoints", "file:my%20dir", "s3://mail/x/y"])
def test_checkpoint_directory_may_be_created_later(tmp_path: Path, url: str) -> None:
    (tmp_path / "there").mkdir()
    file = tmp_path / "node.toml"
    file.write_text(f'node.id = "a"\ncheckpoint.url = "{url}"\n')  # node.data, "a", does not exist yet either
    assert load_config(file, serving=True) == load_config(file)


def test_missing_files_are_reported_together_to_a_node_and_hinder_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'node.id = "a"\n[tls]\ncertificate = "c"\nkey = "k"\n[client_certificates]\nca = "node.toml"\ncrl = "r"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file, serving=True)
    assert str(caught.value).split("\n") == [
        f"{file}:{line}: {key}: there is no file '{tmp_path / name}'"
        for line, key, name in ((3, "certificate", "c"), (4, "key", "k"), (7, "crl", "r"))
    ]
    config = load_config(file)
    assert config.tls == TlsConfig(tmp_path / "c", tmp_path / "k")
    assert config.client_certificates == ClientCertificatesConfig(file, tmp_path / "r")


def test_windows_line_ends_do_not_shift_lines(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(b'[node]\r\nid = "a"\r\nbad = 1\r\n')
    with pytest.raises(ConfigError, match=r"node\.toml:3: unknown key 'bad'"):
        load_config(tmp_path / "node.toml")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:a b", "{dir}/a%20b"),
        ("file:/x/y", "/x/y"),
        ("file:///x/y", "/x/y"),
        ("file:///x%20y", "/x%20y"),
    ],
)
def test_file_urls_become_absolute(tmp_path: Path, url: str, expected: str) -> None:
    config = load(tmp_path, f'node.id = "a"\ncheckpoint.url = "{url}"')
    assert config.checkpoint.url == "file://" + expected.format(dir=tmp_path)


def test_clients_have_certificates_of_their_own(tmp_path: Path) -> None:
    for name in ("a.pem", "a.key", "b.pem", "b.key"):
        (tmp_path / name).touch()
    text = 'node.id = "a"\nlisten.imaps = "0.0.0.0:993"\n'
    sections = "".join(f'[[certificate]]\nfile = "{name}.pem"\nkey = "{name}.key"\n' for name in "ab")
    config = load(tmp_path, text + sections)
    assert config.listen.imaps == Address("0.0.0.0", 993)
    assert config.certificates == tuple(
        CertificateConfig(tmp_path / f"{name}.pem", tmp_path / f"{name}.key") for name in "ab"
    )
    [problem] = problems(tmp_path, text)
    assert problem.startswith("2: imaps: TLS begins at once there, so it needs a [[certificate]] for clients")
    assert problems(tmp_path, text + '[[certificate]]\nfile = "a.pem"\n') == [
        f"3: 'key' is missing in [certificate]: add, for example, key = \"{tmp_path / 'mail.key'}\""
    ]
    assert (
        "imaps: 127.0.0.1:1 is already used by 'imap'"
        in problems(tmp_path, 'node.id = "a"\n[listen]\nimap = "127.0.0.1:1"\nimaps = "127.0.0.1:1"\n' + sections)[0]
    )


def test_clusters_of_the_site_are_listed_with_this_one(tmp_path: Path) -> None:
    text = 'node.id = "a"\nnode.cluster = "east"\n'
    sections = '[[cluster]]\nname = "west"\nimap = "mail.west:143"\n[[cluster]]\nname = "east"\nlmtp = "[::1]:24"\n'
    assert load(tmp_path, text + sections).clusters == (
        ClusterConfig("west", imap=Address("mail.west", 143)),
        ClusterConfig("east", lmtp=Address("::1", 24)),
    )
    assert problems(tmp_path, text + '[[cluster]]\nname = "west"\n') == [
        "4: name: the node's own cluster, 'east', must be listed, too; see `cluster` in [node]"
    ]
    twice = problems(tmp_path, text + sections + '[[cluster]]\nname = "west"\n')
    assert twice[-1] == "10: name: the cluster 'west' is listed more than once"


def test_private_proxies_are_networks(tmp_path: Path) -> None:
    text = 'node.id = "a"\nproxy.trusted = ["10.0.0.0/8"]\nproxy.private = ["10.0.0.7"]\n'
    assert load(tmp_path, text).proxy == ProxyConfig((IPv4Network("10.0.0.0/8"),), (IPv4Network("10.0.0.7"),))
    assert "3: private: expected a list such as" in problems(tmp_path, text.replace("10.0.0.7", "proxy"))[0]


@pytest.mark.parametrize("value", ["9" * 4400, "[" * 1200, "{a = " * 400])
def test_numbers_and_nesting_beyond_measure_are_reported(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.toml: a number has thousands of digits, or lists or tables nest"):
        load(tmp_path, f"node.id = {value}")


def test_path_that_the_system_refuses_is_reported(tmp_path: Path) -> None:
    long = "a" * 300
    file = tmp_path / "node.toml"
    file.write_text(
        f'node.id = "a"\ncheckpoint.url = "file:{long}/b"\n[tls]\ncertificate = "{long}"\nkey = "node.toml"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file, serving=True)
    assert str(caught.value).count("File name too long") == 2
    assert re.findall(r"toml:(\d+): (\w+)", str(caught.value)) == [("2", "url"), ("4", "certificate")]


def test_trusted_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    config = load(tmp_path, 'node.id = "a"\nproxy.trusted = ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]')
    assert [str(network) for network in config.proxy.trusted] == ["127.0.0.1/32", "10.0.0.0/8", "2001:db8::/32"]
    for wrong in ('"10.0.0.0/8"', '["10.0.0.1/8"]', '["proxy.example"]', "[1]"):
        [problem] = problems(tmp_path, f'node.id = "a"\nproxy.trusted = {wrong}')
        assert problem.startswith('2: trusted: expected a list such as ["127.0.0.1", "10.0.0.0/8"]')
