"""The configuration file (design section 9): TOML in, one frozen `Config` out, every problem reported with its line.

`model` holds the data classes and defaults, `values` the rules of single values, `positions` finds lines, `loader`
combines them, `template` writes a file. Nothing here opens a socket or creates a directory. Known keys and their
defaults are a contract: scripts rely on them.
"""

from replicator.config.loader import load_config
from replicator.config.model import (
    Address,
    CertificateConfig,
    CheckpointConfig,
    Config,
    ConflictConfig,
    ContentConfig,
    DurabilityConfig,
    HttpConfig,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    MastershipConfig,
    Network,
    NodeConfig,
    PeerAddress,
    PeerConfig,
    ProxyConfig,
    QuotaConfig,
    Scope,
    SearchConfig,
    SocketPath,
    TlsConfig,
    UidConflict,
    UsersConfig,
    WhenFull,
    WhenShort,
    default_config,
)
from replicator.config.template import config_text, tls_text

__all__ = [
    "Address",
    "CertificateConfig",
    "CheckpointConfig",
    "Config",
    "ConflictConfig",
    "ContentConfig",
    "DurabilityConfig",
    "HttpConfig",
    "LimitsConfig",
    "ListenConfig",
    "LogConfig",
    "MastershipConfig",
    "Network",
    "NodeConfig",
    "PeerAddress",
    "PeerConfig",
    "ProxyConfig",
    "QuotaConfig",
    "Scope",
    "SearchConfig",
    "SocketPath",
    "TlsConfig",
    "UidConflict",
    "UsersConfig",
    "WhenFull",
    "WhenShort",
    "config_text",
    "default_config",
    "load_config",
    "tls_text",
]
