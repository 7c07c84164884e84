"""The data classes of a configuration, and the defaults of missing keys.

Paths are absolute, durations are seconds, sizes are bytes. All defaults are defined here; two of them depend on other
keys: `node.data` is the node's id, and `durability.copies` is 2 or, on a single node, 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from protocol.units import GIB, KIB, MIB
from replicator.mime.header import MAX_FIELDS
from replicator.runtime.addresses import is_loopback

DAY_S = 86_400.0


class Address(NamedTuple):
    """Address to listen on or connect to. Prints as it is configured: `host:port`, IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can be on the other end."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class SocketPath:
    """Socket in the file system, to listen on or connect to. Prints as it is configured: `unix:PATH`."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def is_loopback(self) -> bool:
        """True: only a program on this machine can be on the other end."""
        return True


PeerAddress = Address | SocketPath


class WhenShort(StrEnum):
    """Behaviour of a write while fewer than `durability.copies` nodes can be reached."""

    PROCEED = "proceed"
    REFUSE = "refuse"


class Scope(StrEnum):
    """Unit of mail that has one master (design section 5)."""

    MAILBOX = "mailbox"
    USER = "user"
    DOMAIN = "domain"
    GLOBAL = "global"
    DYNAMIC = "dynamic"


class UidConflict(StrEnum):
    """Treatment of colliding UIDs by a merge (design section 3)."""

    RENUMBER = "renumber"
    UIDVALIDITY = "uidvalidity"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """This node. `priority`: the reachable node with the lowest priority, then the lowest id, is the root.

    `removed`: ids of nodes that have left the cluster for good, for which the log is not kept.
    """

    id: str
    data: Path
    cluster: str = "mail"
    priority: int = 100
    removed: tuple[str, ...] = ()

    @property
    def own_socket(self) -> Path:
        """The socket in the file system by which commands reach the node that runs with this configuration."""
        return self.data / "http.sock"

    @property
    def database(self) -> Path:
        """The file of the node's database."""
        return self.data / "node.db"

    @property
    def dovecots(self) -> Path:
        """The directory of what the node remembers of syncs with Dovecots."""
        return self.data / "dovecots"

    @property
    def cluster_users(self) -> Path:
        """The passwd-file that the node writes if users come from the cluster."""
        return self.data / "users.passwd"


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Addresses of the doors. None: the door stays shut."""

    peer: PeerAddress | None = None
    imap: Address | None = None
    lmtp: Address | None = None
    http: Address | None = None
    imaps: Address | None = None
    socketmap: Address | None = None
    doveadm: Address | None = None


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another node of the cluster."""

    id: str
    address: PeerAddress


@dataclass(frozen=True, slots=True)
class DurabilityConfig:
    """Nodes, including this one, that must have a change on disk before the client hears OK."""

    copies: int = 2
    when_short: WhenShort = WhenShort.PROCEED


@dataclass(frozen=True, slots=True)
class MastershipConfig:
    """Scope of masters, and the timing after which a silent node counts as dead."""

    scope: Scope = Scope.MAILBOX
    heartbeat_s: float = 1.0
    timeout_s: float = 4.0


class UserSource(StrEnum):
    """The source of users: a passwd-file that the operator keeps, the cluster's own table, or a server."""

    FILE = "file"
    CLUSTER = "cluster"
    LDAP = "ldap"
    ENDPOINT = "endpoint"
    DOVECOT = "dovecot"

    @property
    def is_server(self) -> bool:
        """True if a server knows the users, which has a section of this name."""
        return self in {UserSource.LDAP, UserSource.ENDPOINT, UserSource.DOVECOT}


@dataclass(frozen=True, slots=True)
class UsersConfig:
    """Users with mail here (`replicator.users`).

    The file need not exist yet. If users come from the cluster, the node writes it; if from a server, nobody does.
    `master_passwd_file`: of users who log in as others; `master_separator`: the character between the names of user and
    master in a log-in.
    """

    passwd_file: Path
    source: UserSource = UserSource.FILE
    master_passwd_file: Path | None = None
    master_separator: str | None = None


@dataclass(frozen=True, slots=True)
class LmtpConfig:
    """Delivery. `aliases`: the file of aliases and catch-all addresses; None: there are none."""

    aliases: Path | None = None


@dataclass(frozen=True, slots=True)
class LdapConfig:
    """An LDAP server that knows the users. `url`: `ldap://HOST[:PORT]` or `ldaps://HOST[:PORT]`.

    `ca`: a PEM file with the CA of the server's certificate; None: the system's CAs. `bind_dn` searches, with the
    password in the first line of `password_file`; None: without a log-in. `filter` has `%u` for a name, `%n` and `%d`
    for its parts. The attributes give a user's own name, quota, and whether the user is disabled; None: none does.
    `cache_s`, `cache_missing_s`: seconds for which answers about users, and that there is none, are good.
    """

    url: str
    base: str
    filter: str
    user_attribute: str
    starttls: bool = False
    ca: Path | None = None
    bind_dn: str | None = None
    password_file: Path | None = None
    quota_attribute: str | None = None
    disabled_attribute: str | None = None
    timeout_s: float = 5.0
    cache_s: float = 60.0
    cache_missing_s: float = 10.0

    @property
    def name(self) -> str:
        """The server, for messages."""
        return self.url

    @property
    def host(self) -> str:
        """The server's name, or its IP address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The server's port."""
        return urlsplit(self.url).port or (636 if self.begins_with_tls else 389)

    @property
    def begins_with_tls(self) -> bool:
        """True if the connection is encrypted from its beginning."""
        return self.url.startswith("ldaps:")

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.begins_with_tls or self.starttls


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """A program of the operator's that knows the users, asked over HTTP at `url`. `ca`: as that of `LdapConfig`.

    `token_file`: its first line goes with each request as a bearer token. `timeout_s`, `cache_s`, `cache_missing_s`: as
    those of `LdapConfig`.
    """

    url: str
    ca: Path | None = None
    token_file: Path | None = None
    timeout_s: float = 5.0
    cache_s: float = 60.0
    cache_missing_s: float = 10.0

    @property
    def name(self) -> str:
        """The program, for messages: its URL without the query, which may have a secret in it."""
        return urlsplit(self.url)._replace(query="").geturl()

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.url.startswith("https:")


@dataclass(frozen=True, slots=True)
class DovecotAuthConfig:
    """A Dovecot on this machine that knows the users. `userdb`, `auth`: its sockets `auth-userdb` and `auth-client`.

    `timeout_s`, `cache_s`, `cache_missing_s`: as those of `LdapConfig`.
    """

    userdb: Path
    auth: Path
    timeout_s: float = 5.0
    cache_s: float = 60.0
    cache_missing_s: float = 10.0

    @property
    def name(self) -> str:
        """The Dovecot, for messages."""
        return f"Dovecot at {self.userdb}"


@dataclass(frozen=True, slots=True)
class DovecotConfig:
    """A Dovecot with which the node syncs its users' mail. `address`: the listener of its doveadm.

    `replicator`: its own replicator syncs with the cluster, too.

    `password_file`: its first line is the Dovecot's `doveadm_password`. `ca`: the file of the CA of its certificate;
    None: the CAs of the system. Without `tls`, the connection is not encrypted. `users`: patterns of the names of those
    whose mail is synced, with `*` and `?`. `sync_every_s`: how often the Dovecot is asked for changes of its own;
    `full_sync_every_s`: how often all mails are compared.
    """

    address: Address
    password_file: Path
    tls: bool = False
    ca: Path | None = None
    users: tuple[str, ...] = ("*",)
    sync_every_s: float = 300.0
    full_sync_every_s: float = DAY_S
    replicator: bool = False


@dataclass(frozen=True, slots=True)
class DoveadmConfig:
    """Syncs with Dovecots. `password_file`: its first line is the password that they give, `doveadm_password` there."""

    password_file: Path | None = None


UserServerConfig = LdapConfig | EndpointConfig | DovecotAuthConfig
"""A server that knows the users."""


@dataclass(frozen=True, slots=True)
class ConflictConfig:
    """Treatment of colliding UIDs by a merge."""

    uid: UidConflict = UidConflict.RENUMBER


@dataclass(frozen=True, slots=True)
class LogConfig:
    """History kept for nodes that are away."""

    keep_s: float = 7 * DAY_S
    max_size_bytes: int = GIB


@dataclass(frozen=True, slots=True)
class ContentConfig:
    """Storage of large message parts, in a directory that nodes may share, and retention of expunged messages.

    `attachments`: the directory; None: in the node's own data.
    """

    inline_max_bytes: int = 64 * KIB
    keep_expunged_s: float = 14 * DAY_S
    attachments: Path | None = None


class WhenFull(StrEnum):
    """Reply to a delivery that exceeds a user's quota: for good, or for now."""

    REFUSE = "refuse"
    DEFER = "defer"


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Limits on what each user's mail may take, for users whose line in the passwd-file sets none. None: no limit."""

    storage_bytes: int | None = None
    messages: int | None = None
    when_full: WhenFull = WhenFull.REFUSE


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """Searching. `full_text`: the text of each message is kept on disk as SEARCH compares it."""

    full_text: bool = True


WORKERS_MAX = 8
SMALL_CORES = 2


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """Numbers of processes. `doors`: processes that serve IMAP and LMTP; 0: the node's one process serves them."""

    doors: int = 0

    @classmethod
    def of_cores(cls, cores: int) -> WorkersConfig:
        """Return the numbers for a machine with so many cores: one core is left to the node's own process.

        Two cores are too few: what doors and core tell each other takes as much as the second core gives.
        """
        return cls(0 if cores <= SMALL_CORES else min(cores - 1, WORKERS_MAX))


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Location of checkpoints: `file:///absolute/path`, or `s3://bucket/prefix` at Amazon or at `endpoint`.

    `shared`: all nodes with this setting and the same URL reach the same objects.
    """

    url: str
    endpoint: str | None = None
    shared: bool = False

    @property
    def directory(self) -> Path | None:
        """The directory of a `file:` URL."""
        url = urlsplit(self.url)
        return Path(unquote(url.path)) if url.scheme == "file" else None


class TlsMode(StrEnum):
    """Protection of links: by certificates of both ends, or by none."""

    MUTUAL = "mutual"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files. With `ca`, nodes authenticate each other: both present a certificate signed by that CA."""

    certificate: Path
    key: Path
    ca: Path | None = None


Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Networks of proxies in front of the doors for mail. They name each client in a header (PROXY protocol).

    `private`: networks of proxies that protect clients' passwords themselves, whether they send a header or not, and
    whose lines to the node nobody else can read: the node takes passwords from them without TLS.
    """

    trusted: tuple[Network, ...] = ()
    private: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster of the site, this one or another, and where proxies find its doors for mail."""

    name: str
    imap: Address | None = None
    lmtp: Address | None = None


@dataclass(frozen=True, slots=True)
class CertificateConfig:
    """PEM files of a certificate, with those that lead to its CA, and of its key: for mail clients and MTAs."""

    file: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ClientCertificatesConfig:
    """PEM files: the CA of certificates with which mail clients may log in, and its list of revoked ones (a CRL)."""

    ca: Path
    crl: Path | None = None


ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures of access tokens (RFC 7518 section 3.1, RFC 8037 section 3.1, RFC 9864), all by a private key.

With others, such as HS256, whoever can check a token can make one, too.
"""


REFRESH_S = 3600.0


@dataclass(frozen=True, slots=True)
class OauthConfig:
    """Access tokens of an identity provider with which mail clients may log in.

    `jwks`: a file with the provider's keys, or their `https://` URL. `ca`: a PEM file with the CA of the URL's
    certificate; None: the system's CAs. `claim` names the user. `scopes`: all are required.
    """

    issuer: str
    audience: str
    jwks: Path | str
    claim: str
    ca: Path | None = None
    scopes: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS
    refresh_s: float = REFRESH_S


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP listener. `tokens`: the file of its tokens; None: every client that can connect may do everything.

    `directories`: absolute paths and `s3://` URLs below which the holder of a token may have inventories written; None:
    `inventories` in `node.data` and below `checkpoint.url`.
    """

    tokens: Path | None = None
    directories: tuple[str, ...] | None = None


def _limit(default: int, *, lowest: int = 1, highest: int) -> int:
    """Return a field of `LimitsConfig` with inclusive bounds, which the loader checks."""
    limit: int = field(default=default, metadata={"lowest": lowest, "highest": highest})
    return limit


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits on clients and strangers; a key's first word is the door. Add a key here and in docs/configuration.md.

    Whoever refuses something because of a limit counts it with `replicator.runtime.metrics.RefusalMetrics`.
    """

    imap_search_keys: int = _limit(500, highest=10_000)
    imap_search_work: int = _limit(20_000_000, lowest=1_000, highest=10**12)
    imap_sort_messages: int = _limit(200_000, lowest=1_000, highest=10**7)
    imap_header_cache_bytes: int = _limit(64 * MIB, lowest=KIB, highest=64 * GIB)
    imap_fetch_items: int = _limit(100, highest=10_000)
    imap_list_wildcards: int = _limit(16, highest=1_000)
    imap_notify_mailboxes: int = _limit(1_000, highest=100_000)
    imap_folders_per_user: int = _limit(10_000, highest=30_000)
    imap_annotation_bytes: int = _limit(16 * KIB, lowest=1_024, highest=64 * KIB)
    imap_annotations_per_folder: int = _limit(100, lowest=10, highest=1_000)
    imap_annotations_per_user: int = _limit(1_000, lowest=10, highest=10_000)
    imap_header_fields: int = _limit(MAX_FIELDS, lowest=100, highest=100_000)
    imap_connections: int = _limit(1000, highest=100_000)
    imap_connections_per_user: int = _limit(50, highest=10_000)
    imap_unauthenticated: int = _limit(250, highest=100_000)
    imap_unauthenticated_per_address: int = _limit(20, highest=100_000)
    imap_unauthenticated_on_loopback: int = _limit(100, highest=100_000)
    imap_token_bytes: int = _limit(16_384, lowest=1_024, highest=32_768)
    imap_login_seconds: int = _limit(60, lowest=10, highest=600)
    imap_idle_seconds: int = _limit(1_800, lowest=1_800, highest=86_400)
    lmtp_connections: int = _limit(200, highest=10_000)
    lmtp_connections_per_address: int = _limit(100, highest=10_000)
    lmtp_idle_seconds: int = _limit(300, lowest=60, highest=3_600)
    socketmap_connections: int = _limit(200, highest=10_000)
    socketmap_idle_seconds: int = _limit(300, lowest=10, highest=3_600)
    doveadm_connections: int = _limit(50, highest=1_000)
    http_connections: int = _limit(64, highest=10_000)
    http_heads_per_address: int = _limit(32, highest=10_000)
    http_streams: int = _limit(16, highest=10_000)
    http_head_seconds: int = _limit(75, lowest=5, highest=3_600)
    peer_hello_bytes: int = _limit(8192, lowest=1024, highest=65_536)
    peer_strangers: int = _limit(64, highest=1024)
    peer_strangers_per_address: int = _limit(16, highest=1024)


@dataclass(frozen=True, slots=True)
class Config:
    """A node's whole configuration, checked."""

    node: NodeConfig
    users: UsersConfig
    checkpoint: CheckpointConfig
    listen: ListenConfig = field(default_factory=ListenConfig)
    peers: tuple[PeerConfig, ...] = ()
    durability: DurabilityConfig = field(default_factory=DurabilityConfig)
    mastership: MastershipConfig = field(default_factory=MastershipConfig)
    conflict: ConflictConfig = field(default_factory=ConflictConfig)
    log: LogConfig = field(default_factory=LogConfig)
    content: ContentConfig = field(default_factory=ContentConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    tls: TlsConfig | None = None
    plain_links: bool = False  # `tls.mode = "none"`: links to other machines need no TLS
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    clusters: tuple[ClusterConfig, ...] = ()  # of the site; none: it has this one alone, and no proxy asks for it
    certificates: tuple[CertificateConfig, ...] = ()  # for clients; none: that of `tls`
    client_certificates: ClientCertificatesConfig | None = None
    oauth: OauthConfig | None = None
    ldap: LdapConfig | None = None
    endpoint: EndpointConfig | None = None
    dovecot_auth: DovecotAuthConfig | None = None
    dovecots: tuple[DovecotConfig, ...] = ()
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    lmtp: LmtpConfig = field(default_factory=LmtpConfig)
    doveadm: DoveadmConfig = field(default_factory=DoveadmConfig)


def user_server(config: Config) -> UserServerConfig | None:
    """Return the server that knows the users; None: they come from a file or from the cluster."""
    match config.users.source:
        case UserSource.LDAP:
            return config.ldap
        case UserSource.ENDPOINT:
            return config.endpoint
        case UserSource.DOVECOT:
            return config.dovecot_auth
        case _:
            return None


def default_copies(nodes: int) -> int:
    """Return the default of `durability.copies`: two, or one on a single node."""
    return min(DurabilityConfig().copies, nodes)


def default_config(
    sid: str, directory: Path, *, listen: ListenConfig | None = None, peers: tuple[PeerConfig, ...] = ()
) -> Config:
    """Return the configuration of a file in `directory` that sets nothing but these values."""
    directory = directory.absolute()
    return Config(
        node=NodeConfig(sid, directory / sid),
        users=UsersConfig(directory / "users.passwd"),
        checkpoint=CheckpointConfig((directory / "checkpoints").as_uri()),
        listen=listen or ListenConfig(),
        peers=peers,
        durability=DurabilityConfig(copies=default_copies(1 + len(peers))),
    )
