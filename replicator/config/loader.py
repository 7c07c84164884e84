"""Loading of a file into a `Config`: each section in turn, then the rules between sections."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from protocol.units import MIB
from replicator.config import values
from replicator.config.model import (
    ALGORITHMS,
    REFRESH_S,
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
    EndpointConfig,
    HttpConfig,
    LdapConfig,
    LimitsConfig,
    ListenConfig,
    LmtpConfig,
    LogConfig,
    MastershipConfig,
    NodeConfig,
    OauthConfig,
    PeerAddress,
    PeerConfig,
    ProxyConfig,
    QuotaConfig,
    Scope,
    SearchConfig,
    TlsConfig,
    TlsMode,
    UidConflict,
    UsersConfig,
    UserSource,
    WhenFull,
    WhenShort,
    WorkersConfig,
    default_config,
    default_copies,
    user_server,
)
from replicator.config.source import Section, Source
from replicator.runtime.addresses import is_loopback
from replicator.runtime.files.first_line import first_line
from replicator.runtime.sizes import MESSAGES_MAX

EXAMPLE_SID = "dc1"
EXAMPLE_ADDRESS: PeerAddress = Address("127.0.0.1", 4421)

EXAMPLE_DOVECOT = Address("127.0.0.1", 2425)

PEERS_MAX = 254
"""Every node of a cluster links to every other; with more, floods and contexts outgrow their lines."""

SERVER_TIMEOUT_MAX_S = 15.0
"""A client that logs in waits for half a minute or longer. The first request that is not answered ends the log-in; else
there is one for each part of the name, one for the user's own name, and one for the password.
"""

SERVER_CACHE_MAX_S = 3600.0

PRIORITY_MAX = 2**31 - 1


def load_config(path: Path, *, serving: bool = False, text: str | None = None) -> Config:
    """Read and check a configuration file, or the `text` that it is to have.

    With `serving`, also check that files needed for serving are there. Raises ConfigError, whose text has a line
    `file:line: problem and remedy` for each problem.
    """
    source = Source(path, text)
    directory = path.absolute().parent
    # A command that asks a running node must work even if a certificate has been lost, and at another machine.
    file = values.existing_file(directory) if serving else values.path(directory)
    node = _node(source.section("node"), directory)
    defaults = default_config(node.id, directory)
    listen = _listen(source.section("listen"), directory)
    peers = tuple(_peer(section, directory) for section in source.sections("peer"))
    tls, plain_links = _tls(source.section("tls"), directory, file)
    config = Config(
        node=node,
        listen=listen,
        peers=peers,
        durability=_durability(source.section("durability"), nodes=1 + len(peers)),
        mastership=_mastership(source.section("mastership")),
        users=_users(source.section("users"), directory, node),
        conflict=ConflictConfig(
            source.section("conflict").take("uid", values.choice(UidConflict), ConflictConfig().uid)
        ),
        log=_log(source.section("log")),
        content=_content(source.section("content"), directory),
        quota=_quota(source.section("quota")),
        search=SearchConfig(source.section("search").take("full_text", values.boolean, SearchConfig().full_text)),
        checkpoint=_checkpoint(source.section("checkpoint"), directory, defaults.checkpoint),
        tls=tls,
        plain_links=plain_links,
        proxy=_proxy(source.section("proxy")),
        clusters=tuple(_cluster(section) for section in source.sections("cluster")),
        certificates=tuple(_certificate(section, directory, file) for section in source.sections("certificate")),
        client_certificates=_client_certificates(source.section("client_certificates"), directory, file),
        oauth=_oauth(source.section("oauth"), file),
        ldap=_ldap(source.section("ldap"), file),
        endpoint=_endpoint(source.section("endpoint"), file),
        dovecot_auth=_dovecot_auth(source.section(_name_of_dovecot_auth(source)), directory),
        dovecots=_dovecots(source, file),
        limits=_limits(source.section("limits")),
        http=_http(source.section("http"), directory),
        workers=_workers(source.section("workers")),
        lmtp=LmtpConfig(source.section("lmtp").take("aliases", file, None)),
        doveadm=DoveadmConfig(source.section("doveadm").take("password_file", file, None)),
    )
    _check_peers(source, config)
    _check_listeners(source, config)
    _check_exposure(source, config)
    _check_clusters(source, config)
    _check_user_server(source, config)
    _check_dovecots(source, config)
    if serving:
        _check_passwd_file(source, config.users)
        _check_doveadm_password(source, config.doveadm)
        _check_checkpoint_directory(source, config)
    source.finish()
    return config


def _users(section: Section, directory: Path, node: NodeConfig) -> UsersConfig:
    source = section.take("source", values.choice(UserSource), UserSource.FILE)
    named = section.take("passwd_file", values.path(directory), None)
    masters = section.take("master_passwd_file", values.path(directory), None)
    separator = section.take("master_separator", values.separator, None)
    if separator is not None and masters is None:
        section.problem("master_separator", "there are no master users without `master_passwd_file`")
    if source is UserSource.FILE:
        file = named or default_config(node.id, directory).users.passwd_file
        return UsersConfig(file, source, masters, separator)
    if source.is_server:
        if named is not None:
            text = f'users come from the server of [{source}] (source = "{source}"); remove this key'
            section.problem("passwd_file", text)
        return UsersConfig(node.cluster_users, source, masters, separator)
    if named is not None:
        text = (
            'users come from the cluster (source = "cluster"); remove this key, and bring the users of the file in once'
        )
        section.problem("passwd_file", f"{text} by `replicator user import`")
    return UsersConfig(node.cluster_users, source, masters, separator)


def _workers(section: Section) -> WorkersConfig:
    defaults = WorkersConfig.of_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    return WorkersConfig(section.take("doors", values.whole_number(0, WORKERS_MAX), defaults.doors))


def _node(section: Section, directory: Path) -> NodeConfig:
    sid = section.take_required("id", values.sid, EXAMPLE_SID)
    defaults = default_config(sid, directory).node
    return NodeConfig(
        id=sid,
        data=section.take("data", values.path(directory), defaults.data),
        cluster=section.take("cluster", values.cluster_name, defaults.cluster),
        priority=section.take("priority", values.whole_number(0, PRIORITY_MAX), defaults.priority),
        removed=section.take("removed", values.sids, ()),
    )


def _listen(section: Section, directory: Path) -> ListenConfig:
    def door(key: str) -> Address | None:
        return section.take(key, values.address(lowest_port=0), None)

    peer = section.take("peer", values.peer_address(0, directory), None)
    return ListenConfig(
        peer=peer,
        imap=door("imap"),
        imaps=door("imaps"),
        lmtp=door("lmtp"),
        socketmap=door("socketmap"),
        doveadm=door("doveadm"),
        http=door("http"),
    )


def _peer(section: Section, directory: Path) -> PeerConfig:
    return PeerConfig(
        id=section.take_required("id", values.sid, EXAMPLE_SID),
        address=section.take_required("address", values.peer_address(1, directory), EXAMPLE_ADDRESS),
    )


def _durability(section: Section, nodes: int) -> DurabilityConfig:
    return DurabilityConfig(
        copies=section.take(
            "copies", values.whole_number(1, nodes, "this node and each [[peer]]"), default_copies(nodes)
        ),
        when_short=section.take("when_short", values.choice(WhenShort), DurabilityConfig().when_short),
    )


def _mastership(section: Section) -> MastershipConfig:
    defaults = MastershipConfig()
    # Faster heartbeats would measure the scheduler.
    pace = values.duration(lowest_s=0.01)
    mastership = MastershipConfig(
        scope=section.take("scope", values.choice(Scope), defaults.scope),
        heartbeat_s=section.take("heartbeat", pace, defaults.heartbeat_s),
        timeout_s=section.take("timeout", pace, defaults.timeout_s),
    )
    if mastership.timeout_s < 2 * mastership.heartbeat_s:
        least = f"must be at least twice the heartbeat of {mastership.heartbeat_s:g} s"
        section.problem("timeout", f"{least}, or one late heartbeat breaks the link; it is {mastership.timeout_s:g} s")
    return mastership


def _log(section: Section) -> LogConfig:
    return LogConfig(
        keep_s=section.take("keep", values.duration(lowest_s=0.0), LogConfig().keep_s),
        max_size_bytes=section.take("max_size", values.size(lowest_bytes=MIB), LogConfig().max_size_bytes),
    )


def _content(section: Section, directory: Path) -> ContentConfig:
    defaults = ContentConfig()
    # Inline content is part of recipes, which are held in memory whole.
    inline = values.size(lowest_bytes=0, highest_bytes=MIB)
    return ContentConfig(
        inline_max_bytes=section.take("inline_max", inline, defaults.inline_max_bytes),
        keep_expunged_s=section.take("keep_expunged", values.duration(lowest_s=0.0), defaults.keep_expunged_s),
        attachments=section.take("attachments", values.path(directory), None),
    )


def _quota(section: Section) -> QuotaConfig:
    defaults = QuotaConfig()
    return QuotaConfig(
        storage_bytes=section.take("storage", values.size(lowest_bytes=1), defaults.storage_bytes),
        messages=section.take("messages", values.whole_number(1, MESSAGES_MAX), defaults.messages),
        when_full=section.take("when_full", values.choice(WhenFull), defaults.when_full),
    )


def _checkpoint(section: Section, directory: Path, defaults: CheckpointConfig) -> CheckpointConfig:
    url = section.take("url", values.object_store_url(directory), defaults.url)
    endpoint = section.take("endpoint", values.endpoint, None)
    if endpoint is not None and url.startswith("file:"):
        section.problem("endpoint", "it is only for s3:// URLs, but `url` is a directory; leave one of them out")
    return CheckpointConfig(url, endpoint, section.take("shared", values.boolean, defaults.shared))


def _tls(section: Section, directory: Path, file: Callable[[object], Path]) -> tuple[TlsConfig | None, bool]:
    """Return the certificates, and True if links go without."""
    mode = section.take("mode", values.choice(TlsMode), TlsMode.MUTUAL)
    if not section.given or mode is TlsMode.NONE:
        for key in ("certificate", "key", "ca"):  # such a key in another section may be meant for this one
            if section.take(key, file, None) is not None:
                section.problem(key, 'it has no use with mode = "none"; leave one of the two out')
        return None, mode is TlsMode.NONE
    return TlsConfig(
        certificate=section.take_required("certificate", file, directory / "node.pem"),
        key=section.take_required("key", file, directory / "node.key"),
        ca=section.take("ca", file, None),
    ), False


def _proxy(section: Section) -> ProxyConfig:
    defaults = ProxyConfig()
    return ProxyConfig(
        trusted=section.take("trusted", values.networks, defaults.trusted),
        private=section.take("private", values.networks, defaults.private),
    )


def _cluster(section: Section) -> ClusterConfig:
    return ClusterConfig(
        name=section.take_required("name", values.cluster_name, "mail"),
        imap=section.take("imap", values.address(1), None),
        lmtp=section.take("lmtp", values.address(1), None),
    )


def _certificate(section: Section, directory: Path, file: Callable[[object], Path]) -> CertificateConfig:
    return CertificateConfig(
        file=section.take_required("file", file, directory / "mail.pem"),
        key=section.take_required("key", file, directory / "mail.key"),
    )


def _client_certificates(
    section: Section, directory: Path, file: Callable[[object], Path]
) -> ClientCertificatesConfig | None:
    if not section.given:
        for key in ("ca", "crl"):
            section.take(key, file, None)
        return None
    return ClientCertificatesConfig(
        ca=section.take_required("ca", file, directory / "clients.pem"), crl=section.take("crl", file, None)
    )


def _oauth(section: Section, file: Callable[[object], Path]) -> OauthConfig | None:
    keys: Path | str = "https://id.example.org/keys"
    if not section.given:
        for key in fields(OauthConfig):
            section.take(key.name.removesuffix("_s"), values.text, None)
        return None
    oauth = OauthConfig(
        issuer=section.take_required("issuer", values.word, "https://id.example.org"),
        audience=section.take_required("audience", values.word, "mail"),
        jwks=section.take_required("jwks", values.keys_location(file), keys),
        claim=section.take_required("claim", values.word, "email"),
        ca=section.take("ca", file, None),
        scopes=section.take("scopes", values.words, ()),
        algorithms=section.take("algorithms", values.algorithms, ALGORITHMS),
        refresh_s=section.take("refresh", values.duration(lowest_s=60.0), REFRESH_S),
    )
    if oauth.ca is not None and isinstance(oauth.jwks, Path):
        section.problem("ca", "it is for an https:// URL, but `jwks` is a file; leave one of them out")
    return oauth


def _ldap(section: Section, file: Callable[[object], Path]) -> LdapConfig | None:
    if not section.given:
        for key in fields(LdapConfig):
            section.take(key.name.removesuffix("_s"), values.text, None)
        return None
    defaults = LdapConfig("", "", "", "")
    ldap = LdapConfig(
        url=section.take_required("url", values.ldap_url, "ldaps://ldap.example.org"),
        base=section.take_required("base", values.text, "ou=people,dc=example,dc=org"),
        filter=section.take_required("filter", values.ldap_filter, "(mail=%u)"),
        user_attribute=section.take_required("user_attribute", values.attribute, "uid"),
        starttls=section.take("starttls", values.boolean, defaults.starttls),
        ca=section.take("ca", file, None),
        bind_dn=section.take("bind_dn", values.text, None),
        password_file=section.take("password_file", file, None),
        quota_attribute=section.take("quota_attribute", values.attribute, None),
        disabled_attribute=section.take("disabled_attribute", values.attribute, None),
        timeout_s=section.take("timeout", values.duration(0.1, SERVER_TIMEOUT_MAX_S), defaults.timeout_s),
        cache_s=section.take("cache", values.duration(1.0, SERVER_CACHE_MAX_S), defaults.cache_s),
        cache_missing_s=section.take(
            "cache_missing", values.duration(1.0, SERVER_CACHE_MAX_S), defaults.cache_missing_s
        ),
    )
    if ldap.begins_with_tls and ldap.starttls:
        section.problem("starttls", "an ldaps:// URL begins with TLS already; leave this key out, or write ldap://")
    if not ldap.begins_with_tls and not ldap.starttls:
        if ldap.ca is not None:
            section.problem("ca", "it has no use without TLS; write ldaps:// in `url`, or starttls = true")
        if not is_loopback(ldap.host):
            text = f"passwords would cross the network to {ldap.host} unprotected; write ldaps://, or starttls = true"
            section.problem("url", text)
    if ldap.password_file is not None and ldap.bind_dn is None:
        section.problem("password_file", "it has no use without `bind_dn`; add that, or leave this out")
    if ldap.bind_dn is not None and ldap.password_file is None:
        section.problem("bind_dn", "its password is missing: add `password_file`, whose first line has it")
    return ldap


def _endpoint(section: Section, file: Callable[[object], Path]) -> EndpointConfig | None:
    if not section.given:
        for key in fields(EndpointConfig):
            section.take(key.name.removesuffix("_s"), values.text, None)
        return None
    defaults = EndpointConfig("")
    endpoint = EndpointConfig(
        url=section.take_required("url", values.endpoint_url, "https://auth.example.org/users"),
        ca=section.take("ca", file, None),
        token_file=section.take("token_file", file, None),
        timeout_s=section.take("timeout", values.duration(0.1, SERVER_TIMEOUT_MAX_S), defaults.timeout_s),
        cache_s=section.take("cache", values.duration(1.0, SERVER_CACHE_MAX_S), defaults.cache_s),
        cache_missing_s=section.take(
            "cache_missing", values.duration(1.0, SERVER_CACHE_MAX_S), defaults.cache_missing_s
        ),
    )
    if endpoint.ca is not None and not endpoint.url.startswith("https:"):
        section.problem("ca", "it has no use without TLS; write https:// in `url`, or leave this out")
    return endpoint


def _name_of_dovecot_auth(source: Source) -> str:
    """Return the name of the section of the Dovecot that knows the users: `[dovecot]` in version 0.2."""
    return "dovecot" if isinstance(source.root.get("dovecot"), dict) else "dovecot_auth"


def _dovecots(source: Source, file: Callable[[object], Path]) -> tuple[DovecotConfig, ...]:
    if _name_of_dovecot_auth(source) == "dovecot":
        return ()
    return tuple(_dovecot(section, file) for section in source.sections("dovecot"))


def _dovecot(section: Section, file: Callable[[object], Path]) -> DovecotConfig:
    address = section.take_required("address", values.address(lowest_port=1), EXAMPLE_DOVECOT)
    defaults = DovecotConfig(address, Path())
    dovecot = DovecotConfig(
        address=address,
        password_file=section.take_required("password_file", file, Path("dovecot.password")),
        tls=section.take("tls", values.boolean, not address.is_loopback),
        ca=section.take("ca", file, None),
        users=section.take("users", values.patterns, defaults.users),
        sync_every_s=section.take("sync_every", values.duration(1.0), defaults.sync_every_s),
        full_sync_every_s=section.take("full_sync_every", values.duration(1.0), defaults.full_sync_every_s),
        replicator=section.take("replicator", values.boolean, defaults.replicator),
    )
    if not dovecot.tls and not address.is_loopback:
        section.problem("tls", f"{address} is another machine, and the password opens all mail there: leave this out")
    if dovecot.ca is not None and not dovecot.tls:
        section.problem("ca", "it has no use without TLS; write `tls = true`, or leave this out")
    return dovecot


def _dovecot_auth(section: Section, directory: Path) -> DovecotAuthConfig | None:
    if not section.given:
        for key in fields(DovecotAuthConfig):
            section.take(key.name.removesuffix("_s"), values.text, None)
        return None
    defaults = DovecotAuthConfig(directory, directory)
    socket = values.path(directory)
    return DovecotAuthConfig(
        userdb=section.take_required("userdb", socket, Path("/run/dovecot/auth-userdb")),
        auth=section.take_required("auth", socket, Path("/run/dovecot/auth-client")),
        timeout_s=section.take("timeout", values.duration(0.1, SERVER_TIMEOUT_MAX_S), defaults.timeout_s),
        cache_s=section.take("cache", values.duration(1.0, SERVER_CACHE_MAX_S), defaults.cache_s),
        cache_missing_s=section.take(
            "cache_missing", values.duration(1.0, SERVER_CACHE_MAX_S), defaults.cache_missing_s
        ),
    )


def _http(section: Section, directory: Path) -> HttpConfig:
    return HttpConfig(
        tokens=section.take("tokens", values.path(directory), None),
        directories=section.take("directories", values.places(directory), None),
    )


def _limits(section: Section) -> LimitsConfig:
    def limit(key: str, lowest: int, highest: int) -> int:
        default: int = getattr(defaults, key)
        return section.take(key, values.whole_number(lowest, highest), default)

    defaults = LimitsConfig()
    return LimitsConfig(**{key.name: limit(key.name, **key.metadata) for key in fields(LimitsConfig)})


def _check_peers(source: Source, config: Config) -> None:
    """Check that every node is listed once."""
    if len(config.peers) > PEERS_MAX:
        source.problem(("peer",), f"a node can have at most {PEERS_MAX} peers, not {len(config.peers)}")
    for sid in sorted({config.node.id, *(peer.id for peer in config.peers)} & set(config.node.removed)):
        listed = "is this node itself" if sid == config.node.id else "has a [[peer]] section, too"
        advice = "remove it here" if sid == config.node.id else "remove it from one of the two"
        source.problem(("node", "removed"), f"removed: {sid!r} {listed}; {advice}")
    ids: Counter[str] = Counter()
    addresses: Counter[PeerAddress] = Counter()
    for number, peer in enumerate(config.peers):
        if peer.id == config.node.id:
            source.problem(("peer", number, "id"), f"id: {peer.id!r} is this node itself; list only the others")
        elif ids[peer.id]:
            source.problem(
                ("peer", number, "id"), f"id: a peer {peer.id!r} is already listed above; each peer needs its own id"
            )
        if addresses[peer.address]:
            source.problem(
                ("peer", number, "address"), f"address: {peer.address} is already the address of a peer above"
            )
        elif peer.address == config.listen.peer:
            source.problem(("peer", number, "address"), f"address: {peer.address} is this node's own address")
        ids[peer.id] += 1
        addresses[peer.address] += 1


def _check_listeners(source: Source, config: Config) -> None:
    """Check that no two doors have one address. Port 0 stands for a different port each time."""
    taken: dict[PeerAddress, str] = {}
    for door in ("peer", "imap", "imaps", "lmtp", "socketmap", "doveadm", "http"):
        address: PeerAddress | None = getattr(config.listen, door)
        if address is None or (isinstance(address, Address) and address.port == 0):
            continue
        if address in taken:
            source.problem(("listen", door), f"{door}: {address} is already used by {taken[address]!r}")
        taken.setdefault(address, door)


def _check_user_server(source: Source, config: Config) -> None:
    """Check that a server of users has its section, and that a site of clusters has no such source."""
    kind = config.users.source
    if not kind.is_server:
        return
    if user_server(config) is None:
        section = "dovecot_auth" if kind is UserSource.DOVECOT else kind
        source.problem(("users", "source"), f"source: users come from a server, so add a section [{section}]")
    if config.clusters:
        text = "source: with [[cluster]], each user's cluster must be known, and a server does not tell it"
        source.problem(("users", "source"), text)


def _check_dovecots(source: Source, config: Config) -> None:
    """Check that Dovecots can be told apart: a node knows them by their host names and addresses, without ports."""
    hosts = Counter(dovecot.address.host for dovecot in config.dovecots)
    for number, dovecot in enumerate(config.dovecots):
        if hosts[dovecot.address.host] > 1:
            text = (
                "there are several Dovecots at this host, which the node cannot tell apart; give each its own address"
            )
            source.problem(("dovecot", number, "address"), f"address: {dovecot.address}: {text}")


def _check_clusters(source: Source, config: Config) -> None:
    """Check that each cluster of the site is listed once, with this one among them."""
    names = Counter(cluster.name for cluster in config.clusters)
    for number, cluster in enumerate(config.clusters):
        if names[cluster.name] > 1:
            source.problem(("cluster", number, "name"), f"name: the cluster {cluster.name!r} is listed more than once")
    if names and config.node.cluster not in names:
        text = f"the node's own cluster, {config.node.cluster!r}, must be listed, too; see `cluster` in [node]"
        source.problem(("cluster", 0, "name"), f"name: {text}")


def _check_passwd_file(source: Source, users: UsersConfig) -> None:
    """Check that the passwd-file can be read. It may be missing: `replicator user add` creates it."""
    problem = values.unreadable(users.passwd_file)
    if users.source is UserSource.FILE and problem is not None and not isinstance(problem, FileNotFoundError):
        text = (
            f"passwd_file: {users.passwd_file} cannot be read: {problem.strerror}; name a file that the node may read"
        )
        source.problem(("users", "passwd_file"), text)
    masters = users.master_passwd_file
    problem = None if masters is None else values.unreadable(masters)
    if problem is not None and not isinstance(problem, FileNotFoundError):
        text = f"master_passwd_file: {masters} cannot be read: {problem.strerror}; name a file that the node may read"
        source.problem(("users", "master_passwd_file"), text)


def _check_doveadm_password(source: Source, doveadm: DoveadmConfig) -> None:
    """Check that there is a password for Dovecots if there is a file for it: an empty one would let in everybody."""
    if doveadm.password_file is None:
        return
    try:
        problem = None if first_line(doveadm.password_file) else "has an empty first line; write the password there"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; name a file that the node may read"
    if problem is not None:
        source.problem(("doveadm", "password_file"), f"password_file: {doveadm.password_file} {problem}")


def _check_checkpoint_directory(source: Source, config: Config) -> None:
    """Check that the checkpoint directory can be created in an existing one; a longer missing path is a mistake."""
    directory = config.checkpoint.directory
    if directory is None or directory.is_relative_to(config.node.data):
        return
    problem = "does not exist"
    try:
        if directory.parent.is_dir():
            return
    except OSError as error:
        problem = f"cannot be used: {error.strerror}"
    text = f"url: the directory {directory.parent} of {directory.name!r} {problem}; create it, or correct the path"
    source.problem(("checkpoint", "url"), text)


def _check_exposure(source: Source, config: Config) -> None:
    """Check that nothing leaves this machine unprotected."""
    listen = config.listen
    is_decided = config.plain_links or (config.tls is not None and config.tls.ca is not None)
    needs_tls = (
        "needs a [tls] section with certificate, key and ca, so that nodes can trust each other"
        ' (`replicator ca` makes them); or with mode = "none", if nobody else can reach the network between them'
    )
    if listen.peer and not listen.peer.is_loopback and not is_decided:
        source.problem(("listen", "peer"), f"peer: {listen.peer} can be reached from outside, so it {needs_tls}")
    for number, peer in enumerate(config.peers):
        if not peer.address.is_loopback and not is_decided:
            source.problem(
                ("peer", number, "address"), f"address: {peer.address} is on another machine, so it {needs_tls}"
            )
    if listen.imaps and config.tls is None and not config.certificates:
        text = "TLS begins at once there, so it needs a [[certificate]] for clients, or [tls] with certificate and key"
        source.problem(("listen", "imaps"), f"imaps: {text}")
    if config.client_certificates and config.tls is None and not config.certificates:
        text = "certificates of clients need TLS, so add a [[certificate]], or [tls] with certificate and key"
        source.problem(("client_certificates",), text)
    if listen.doveadm and config.doveadm.password_file is None:
        text = "whoever connects there can change all mail, so it needs `password_file` in [doveadm]"
        source.problem(("listen", "doveadm"), f"doveadm: {text}")
    if listen.doveadm and not listen.doveadm.is_loopback and config.tls is None and not config.certificates:
        text = "can be reached from outside, so it needs a [[certificate]], or [tls] with certificate and key"
        source.problem(("listen", "doveadm"), f"doveadm: {listen.doveadm} {text}; or listen on 127.0.0.1")
    if listen.http and not listen.http.is_loopback:
        lacks = []
        if config.http.tokens is None:
            lacks.append("`tokens` in [http]")
        if config.tls is None and not config.certificates:
            lacks.append("a [[certificate]], or [tls] with certificate and key")
        if lacks:
            needs = f"so it needs {' and '.join(lacks)}; or listen on 127.0.0.1"
            source.problem(("listen", "http"), f"http: {listen.http} can be reached from outside, {needs}")
