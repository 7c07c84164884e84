from functools import partial
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.config import (
    ALGORITHMS,
    WORKERS_MAX,
    Address,
    CertificateConfig,
    CheckpointConfig,
    ClientCertificatesConfig,
    ClusterConfig,
    Config,
    ConflictConfig,
    ContentConfig,
    DoveadmConfig,
    DovecotAuthConfig,
    DovecotConfig,
    DurabilityConfig,
    HttpConfig,
    LdapConfig,
    LimitsConfig,
    ListenConfig,
    LmtpConfig,
    LogConfig,
    MastershipConfig,
    NodeConfig,
    OauthConfig,
    PeerConfig,
    ProxyConfig,
    QuotaConfig,
    Scope,
    SearchConfig,
    TlsConfig,
    UidConflict,
    UsersConfig,
    WhenFull,
    WhenShort,
    WorkersConfig,
    config_text,
    default_config,
    load_config,
)

SIDS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)
HOSTS = st.sampled_from(["localhost", "127.0.0.1", "::1"])
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=30).filter(
    lambda name: name not in {".", ".."}
)
DURATIONS = st.integers(0, 10**9).map(lambda ms: ms / 1000)
SYNC_EVERY = st.integers(1000, 10**9).map(lambda ms: ms / 1000)
HEARTBEATS = st.integers(10, 1000).map(lambda ms: ms / 1000)
TIMEOUTS = st.integers(2000, 10**9).map(lambda ms: ms / 1000)

WORDS = st.from_regex(r"[!-~]{1,20}", fullmatch=True)
URLS = st.sampled_from(["https://id.example.org/keys", "https://[::1]:8443/a?b=c", "https://id.example.org:443/"])

PROXIES = ProxyConfig((ip_network("10.0.0.0/8"), ip_network("::1/128")))


@st.composite
def oauths(draw: st.DrawFn, directory: Path) -> OauthConfig:
    jwks = draw(st.just(directory / "keys.json") | URLS)
    return OauthConfig(
        issuer=draw(WORDS),
        audience=draw(WORDS),
        jwks=jwks,
        claim=draw(WORDS),
        ca=draw(st.none() | st.just(directory / "ca")) if isinstance(jwks, str) else None,
        scopes=tuple(draw(st.lists(WORDS, max_size=3))),
        algorithms=tuple(draw(st.lists(st.sampled_from(ALGORITHMS), min_size=1, max_size=3))),
        refresh_s=draw(st.integers(60_000, 10**9)) / 1000,
    )


@st.composite
def ldaps(draw: st.DrawFn, directory: Path) -> LdapConfig:
    url = draw(st.sampled_from(["ldaps://ldap.example.org", "ldap://127.0.0.1:389", "ldap://ldap.example.org"]))
    needs = url == "ldap://ldap.example.org"
    has_password = draw(st.booleans())
    attributes = st.from_regex(r"[a-z][a-zA-Z0-9-]{0,20}", fullmatch=True)
    has_tls = needs or url.startswith("ldaps:")
    return LdapConfig(
        url=url,
        base=draw(WORDS),
        filter=draw(st.sampled_from(["(mail=%u)", "(&(uid=%n)(dc=%d))"])),
        starttls=needs,
        ca=draw(st.none() | st.just(directory / "ca")) if has_tls else None,
        bind_dn=draw(WORDS) if has_password else None,
        password_file=directory / "password" if has_password else None,
        user_attribute=draw(attributes),
        quota_attribute=draw(st.none() | attributes),
        disabled_attribute=draw(st.none() | attributes),
        timeout_s=draw(st.integers(100, 15_000)) / 1000,
        cache_s=draw(st.integers(1_000, 3_600_000)) / 1000,
        cache_missing_s=draw(st.integers(1_000, 3_600_000)) / 1000,
    )


def clusters(own: str) -> st.SearchStrategy[tuple[ClusterConfig, ...]]:
    doors = st.none() | st.builds(Address, HOSTS, st.integers(1, 65535))
    return st.tuples(*(st.builds(ClusterConfig, st.just(name), doors, doors) for name in (own, f"{own[:60]}-b")))


@st.composite
def configs(draw: st.DrawFn, directory: Path) -> Config:
    paths = st.one_of(NAMES.map(lambda name: directory / name), NAMES.map(lambda name: Path("/") / name))
    ports = st.lists(st.integers(1, 65535), min_size=4, max_size=4, unique=True)
    doors = [draw(st.none() | st.builds(Address, HOSTS, st.just(port))) for port in draw(ports)]
    sid, *others = draw(st.lists(SIDS, min_size=1, max_size=4, unique=True))
    peer_ports = draw(st.lists(st.integers(1, 65535), min_size=3, max_size=3, unique=True))
    taken = doors[0].port if doors[0] else 0
    peers = [PeerConfig(s, Address("localhost", p)) for s, p in zip(others, peer_ports, strict=False) if p != taken]
    tls = TlsConfig(directory / "c", directory / "k", draw(st.none() | st.just(directory / "ca")))
    protection = draw(st.sampled_from([None, tls, "none"]))
    certificates = tuple(
        CertificateConfig(directory / f"c{at}", directory / f"k{at}") for at in range(draw(st.integers(0, 2)))
    )
    cluster = draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True))[:64]
    return Config(
        node=NodeConfig(sid, draw(paths), cluster, 7, draw(st.sampled_from([(), ("gone", "gone-2")]))),
        listen=ListenConfig(*doors),
        peers=tuple(peers),
        durability=DurabilityConfig(draw(st.integers(1, 1 + len(peers))), draw(st.sampled_from(WhenShort))),
        mastership=MastershipConfig(draw(st.sampled_from(Scope)), draw(HEARTBEATS), draw(TIMEOUTS)),
        lmtp=LmtpConfig(draw(st.none() | paths)),
        doveadm=DoveadmConfig(draw(st.none() | paths)),
        users=UsersConfig(
            draw(paths),
            master_passwd_file=(masters := draw(st.none() | paths)),
            master_separator=draw(st.none() | st.sampled_from("*%/|!^~&=?$;")) if masters else None,
        ),
        conflict=ConflictConfig(draw(st.sampled_from(UidConflict))),
        log=LogConfig(draw(DURATIONS), draw(st.integers(2**20, 2**50))),
        content=ContentConfig(
            draw(st.integers(0, 2**20)), draw(DURATIONS), draw(st.none() | st.just(directory / "parts"))
        ),
        quota=draw(
            st.builds(QuotaConfig, st.none() | st.integers(1, 2**50), st.none() | st.integers(1, 10**9))
            | st.just(QuotaConfig(when_full=WhenFull.DEFER))
        ),
        search=SearchConfig(draw(st.booleans())),
        workers=WorkersConfig(draw(st.integers(0, WORKERS_MAX))),
        checkpoint=draw(
            st.builds(CheckpointConfig, paths.map(Path.as_uri), shared=st.booleans())
            | st.builds(CheckpointConfig, st.just("s3://b/p"), st.sampled_from([None, "https://o.example:443"]))
        ),
        tls=protection if isinstance(protection, TlsConfig) else None,
        plain_links=protection == "none",
        certificates=certificates,
        client_certificates=draw(
            st.builds(ClientCertificatesConfig, st.just(directory / "ca"), st.none() | st.just(directory / "crl"))
            if certificates
            else st.none()
        ),
        oauth=draw(st.none() | oauths(directory)),
        ldap=draw(st.none() | ldaps(directory)),
        dovecot_auth=draw(st.none() | st.builds(DovecotAuthConfig, paths, paths)),
        dovecots=draw(st.lists(dovecots(directory), max_size=2, unique_by=lambda one: one.address.host).map(tuple)),
        http=HttpConfig(draw(st.none() | paths), draw(st.sampled_from([None, (), ("s3://b/p", "/srv/inventories")]))),
        proxy=draw(st.sampled_from([ProxyConfig(), PROXIES, ProxyConfig((), PROXIES.trusted)])),
        clusters=draw(st.just(()) | clusters(cluster)),
        limits=LimitsConfig(
            imap_fetch_items=draw(st.integers(1, 10_000)), imap_search_keys=draw(st.integers(1, 10_000))
        ),
    )


def dovecots(directory: Path) -> st.SearchStrategy[DovecotConfig]:
    password, ca = directory / "c", st.none() | st.just(directory / "ca")
    users = st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple)
    near = st.builds(DovecotConfig, st.just(Address("127.0.0.1", 2425)), st.just(password), users=users)
    address = st.just(Address("mail.example", 2425))
    encrypted = partial(DovecotConfig, password_file=password, tls=True)
    far = st.builds(encrypted, address, ca=ca, users=users, sync_every_s=SYNC_EVERY, full_sync_every_s=SYNC_EVERY)
    return near | far


@given(st.data())
@settings(deadline=None)
def test_written_configuration_is_read_back(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        for pem in ("c", "k", "ca", "c0", "k0", "c1", "k1", "crl", "keys.json"):
            (directory / pem).touch()
        config = data.draw(configs(directory))
        file = directory / "written.toml"
        file.write_text(config_text(config, directory), encoding="utf-8")
        assert load_config(file) == config


def test_written_configuration_is_readable(tmp_path: Path) -> None:
    config = default_config("dc1", tmp_path, listen=ListenConfig(imap=Address("127.0.0.1", 1143)))
    text = config_text(config, tmp_path)
    assert 'data = "dc1" ' in text
    assert 'imap = "127.0.0.1:1143"' in text
    assert "lmtp" not in text
    assert 'keep = "7d" ' in text
    assert 'max_size = "1GiB" ' in text
    assert 'url = "file:checkpoints" ' in text
    assert "attachments" not in text
    assert str(tmp_path) not in text
