"""Output of a configuration as a commented file, for `replicator cluster run` and as a start for operators."""

from __future__ import annotations

from pathlib import Path

from replicator.config.config import Config
from replicator.config.sections import certificates, doors, dovecots, limits, nodes, oauth, storage, user_servers, users


def config_text(config: Config, directory: Path) -> str:
    """Return TOML that `load_config` reads as `config` from any file in `directory`. Paths within become relative.

    Durations are exact to a microsecond.
    """
    directory = directory.absolute()
    sections = [
        nodes.format_node(config.node, directory),
        doors.format_listen(config.listen),
        *map(nodes.format_peer, config.peers),
        nodes.format_durability(config.durability),
        nodes.format_mastership(config.mastership),
        users.format_users(config.users, directory),
        nodes.format_conflict(config.conflict),
        storage.format_log(config.log),
        storage.format_content(config.content, directory),
        storage.format_checkpoint(config.checkpoint, directory),
        doors.format_lmtp(config.lmtp, directory),
        dovecots.format_doveadm(config.doveadm, directory),
        certificates.format_tls(config.tls, directory, plain_links=config.plain_links),
        doors.format_proxy(config.proxy),
        *map(doors.format_cluster, config.clusters),
        *(certificates.format_certificate(certificate, directory) for certificate in config.certificates),
        certificates.format_client_certificates(config.client_certificates, directory),
        oauth.format_oauth(config.oauth, directory),
        user_servers.format_ldap(config.ldap, directory),
        user_servers.format_endpoint(config.endpoint, directory),
        user_servers.format_dovecot_auth(config.dovecot_auth, directory),
        *(dovecots.format_dovecot(dovecot, directory) for dovecot in config.dovecots),
        limits.format_limits(config.limits),
        limits.format_quota(config.quota),
        storage.format_search(config.search),
        doors.format_http(config.http, directory),
        doors.format_workers(config.workers),
    ]
    return "\n".join(filter(None, sections))


def tls_text(sid: str) -> str:
    """Return the section [tls] of a node whose files lie beside its configuration."""
    directory = Path("/")
    tls = certificates.TlsConfig(directory / f"{sid}.pem", directory / f"{sid}.key", directory / "ca.pem")
    return certificates.format_tls(tls, directory)
