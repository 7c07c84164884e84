"""Rules between sections, and of the files that a configuration names."""

from __future__ import annotations

from collections import Counter

from replicator.config import values
from replicator.config.addresses import Address, PeerAddress
from replicator.config.config import Config, user_server
from replicator.config.sections.dovecots import DoveadmConfig
from replicator.config.sections.users import UsersConfig, UserSource
from replicator.config.source import Source
from replicator.runtime.files.first_line import first_line

PEERS_MAX = 254
"""Every node of a cluster links to every other; with more, floods and contexts outgrow their lines."""


def check_sections(source: Source, config: Config) -> None:
    """Note what one section says against another."""
    _check_peers(source, config)
    _check_listeners(source, config)
    _check_exposure(source, config)
    _check_clusters(source, config)
    _check_user_server(source, config)
    _check_dovecots(source, config)


def check_files(source: Source, config: Config) -> None:
    """Note which files cannot serve a node that is to run."""
    _check_passwd_file(source, config.users)
    _check_doveadm_password(source, config.doveadm)
    _check_checkpoint_directory(source, config)


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


def _check_clusters(source: Source, config: Config) -> None:
    """Check that each cluster of the site is listed once, with this one among them."""
    names = Counter(cluster.name for cluster in config.clusters)
    for number, cluster in enumerate(config.clusters):
        if names[cluster.name] > 1:
            source.problem(("cluster", number, "name"), f"name: the cluster {cluster.name!r} is listed more than once")
    if names and config.node.cluster not in names:
        text = f"the node's own cluster, {config.node.cluster!r}, must be listed, too; see `cluster` in [node]"
        source.problem(("cluster", 0, "name"), f"name: {text}")


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
