"""A whole configuration, put together of its sections, and that of a file which sets nothing.

Paths are absolute, durations are seconds, sizes are bytes. The defaults of keys stand in the data classes of their
sections; a few depend on other keys (`default_node`, `default_copies`, `default_users`, `default_checkpoint`), one on
the machine (`WorkersConfig.of_cores`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from replicator.config.sections.certificates import CertificateConfig, ClientCertificatesConfig, TlsConfig
from replicator.config.sections.doors import (
    ClusterConfig,
    HttpConfig,
    ListenConfig,
    LmtpConfig,
    ProxyConfig,
    WorkersConfig,
)
from replicator.config.sections.dovecots import DoveadmConfig, DovecotConfig
from replicator.config.sections.limits import LimitsConfig, QuotaConfig
from replicator.config.sections.nodes import (
    ConflictConfig,
    DurabilityConfig,
    MastershipConfig,
    NodeConfig,
    PeerConfig,
    default_copies,
    default_node,
)
from replicator.config.sections.oauth import OauthConfig
from replicator.config.sections.storage import (
    CheckpointConfig,
    ContentConfig,
    LogConfig,
    SearchConfig,
    default_checkpoint,
)
from replicator.config.sections.user_servers import DovecotAuthConfig, EndpointConfig, LdapConfig, UserServerConfig
from replicator.config.sections.users import UsersConfig, UserSource, default_users


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


def default_config(
    sid: str, directory: Path, *, listen: ListenConfig | None = None, peers: tuple[PeerConfig, ...] = ()
) -> Config:
    """Return the configuration of a file in `directory` that sets nothing but these values."""
    directory = directory.absolute()
    return Config(
        node=default_node(sid, directory),
        users=default_users(directory),
        checkpoint=default_checkpoint(directory),
        listen=listen or ListenConfig(),
        peers=peers,
        durability=DurabilityConfig(copies=default_copies(1 + len(peers))),
    )
