"""The configuration file (design section 9): TOML in, one frozen `Config` out, every problem reported with its line.

`sections/` has what can be set, `config` the whole of it. `loader` reads a file, by the rules of single values
(`values`) and between sections (`rules`); `source` and `positions` find lines. `template` writes a file, with values by
`formatting`; `edit` changes the peers in one, `changes` and `agreement` compare two. Nothing here opens a socket or
creates a directory. Known keys and their defaults are a contract: scripts rely on them.
"""

from replicator.config.addresses import Address, Network, PeerAddress, SocketPath
from replicator.config.agreement import disagreements
from replicator.config.changes import changed_keys
from replicator.config.config import Config, default_config, user_server
from replicator.config.edit import with_peer, without_peer
from replicator.config.loader import load_config
from replicator.config.sections.certificates import CertificateConfig, ClientCertificatesConfig, TlsConfig
from replicator.config.sections.doors import (
    WORKERS_MAX,
    ClusterConfig,
    HttpConfig,
    ListenConfig,
    LmtpConfig,
    ProxyConfig,
    WorkersConfig,
)
from replicator.config.sections.dovecots import DoveadmConfig, DovecotConfig
from replicator.config.sections.limits import LimitsConfig, QuotaConfig, WhenFull
from replicator.config.sections.nodes import (
    ConflictConfig,
    DurabilityConfig,
    MastershipConfig,
    NodeConfig,
    PeerConfig,
    Scope,
    UidConflict,
    WhenShort,
)
from replicator.config.sections.oauth import ALGORITHMS, OauthConfig
from replicator.config.sections.storage import CheckpointConfig, ContentConfig, LogConfig, SearchConfig
from replicator.config.sections.user_servers import DovecotAuthConfig, EndpointConfig, LdapConfig, UserServerConfig
from replicator.config.sections.users import UsersConfig, UserSource
from replicator.config.source import line_in_file
from replicator.config.template import config_text, tls_text

__all__ = [
    "ALGORITHMS",
    "WORKERS_MAX",
    "Address",
    "CertificateConfig",
    "CheckpointConfig",
    "ClientCertificatesConfig",
    "ClusterConfig",
    "Config",
    "ConflictConfig",
    "ContentConfig",
    "DoveadmConfig",
    "DovecotAuthConfig",
    "DovecotConfig",
    "DurabilityConfig",
    "EndpointConfig",
    "HttpConfig",
    "LdapConfig",
    "LimitsConfig",
    "ListenConfig",
    "LmtpConfig",
    "LogConfig",
    "MastershipConfig",
    "Network",
    "NodeConfig",
    "OauthConfig",
    "PeerAddress",
    "PeerConfig",
    "ProxyConfig",
    "QuotaConfig",
    "Scope",
    "SearchConfig",
    "SocketPath",
    "TlsConfig",
    "UidConflict",
    "UserServerConfig",
    "UserSource",
    "UsersConfig",
    "WhenFull",
    "WhenShort",
    "WorkersConfig",
    "changed_keys",
    "config_text",
    "default_config",
    "disagreements",
    "line_in_file",
    "load_config",
    "tls_text",
    "user_server",
    "with_peer",
    "without_peer",
]
