"""Loading of a file into a `Config`: each section in turn, then the rules between sections."""

from __future__ import annotations

from pathlib import Path

from replicator.config import rules, values
from replicator.config.config import Config
from replicator.config.sections import certificates, doors, dovecots, limits, nodes, oauth, storage, user_servers, users
from replicator.config.source import Source


def load_config(path: Path, *, serving: bool = False, text: str | None = None) -> Config:
    """Read and check a configuration file, or the `text` that it is to have.

    With `serving`, also check that files needed for serving are there. Raises ConfigError, whose text has a line
    `file:line: problem and remedy` for each problem.
    """
    source = Source(path, text)
    directory = path.absolute().parent
    # A command that asks a running node must work even if a certificate has been lost, and at another machine.
    file = values.existing_file(directory) if serving else values.path(directory)
    node = nodes.read_node(source.section("node"), directory)
    peers = tuple(nodes.read_peer(section, directory) for section in source.sections("peer"))
    tls, plain_links = certificates.read_tls(source.section("tls"), directory, file)
    config = Config(
        node=node,
        listen=doors.read_listen(source.section("listen"), directory),
        peers=peers,
        durability=nodes.read_durability(source.section("durability"), nodes=1 + len(peers)),
        mastership=nodes.read_mastership(source.section("mastership")),
        users=users.read_users(source.section("users"), directory, node),
        conflict=nodes.read_conflict(source.section("conflict")),
        log=storage.read_log(source.section("log")),
        content=storage.read_content(source.section("content"), directory),
        quota=limits.read_quota(source.section("quota")),
        search=storage.read_search(source.section("search")),
        checkpoint=storage.read_checkpoint(source.section("checkpoint"), directory),
        tls=tls,
        plain_links=plain_links,
        proxy=doors.read_proxy(source.section("proxy")),
        clusters=tuple(doors.read_cluster(section) for section in source.sections("cluster")),
        certificates=tuple(
            certificates.read_certificate(section, directory, file) for section in source.sections("certificate")
        ),
        client_certificates=certificates.read_client_certificates(
            source.section("client_certificates"), directory, file
        ),
        oauth=oauth.read_oauth(source.section("oauth"), file),
        ldap=user_servers.read_ldap(source.section("ldap"), file),
        endpoint=user_servers.read_endpoint(source.section("endpoint"), file),
        dovecot_auth=user_servers.read_dovecot_auth(source, directory),
        dovecots=dovecots.read_dovecots(source, file),
        limits=limits.read_limits(source.section("limits")),
        http=doors.read_http(source.section("http"), directory),
        workers=doors.read_workers(source.section("workers")),
        lmtp=doors.read_lmtp(source.section("lmtp"), file),
        doveadm=dovecots.read_doveadm(source.section("doveadm"), file),
    )
    rules.check_sections(source, config)
    if serving:
        rules.check_files(source, config)
    source.finish()
    return config
