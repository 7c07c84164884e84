"""Parts of a node as its configuration asks for them, and the directories and files that they need."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from replicator.config import Address, Config, UserSource, WhenFull, user_server
from replicator.dsync import Neighbour
from replicator.errors import DataError
from replicator.http.tasks.destinations import Destinations
from replicator.http.tokens import Tokens
from replicator.mail_doors import site_of
from replicator.network.certificates import Certificates
from replicator.network.rehearsal import certificate_faults
from replicator.oauth import ProviderKeys, key_source
from replicator.reloading import Configuration
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.connections import Connections
from replicator.replication.writes.quotas import Quotas
from replicator.runtime.environment import Environment
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY, exposed_directory, exposed_file, umask_for
from replicator.runtime.metrics import (
    OauthMetrics,
)
from replicator.runtime.objects import ObjectStore
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.files import Files
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home
from replicator.store.db import queries
from replicator.store.store import Store
from replicator.tracing.folder_names import FolderNames
from replicator.tracing.tracer import Tracer
from replicator.user_sources import users_of_server
from replicator.user_table import ClusterUsers
from replicator.users import Directory, QuotaLimits, Recipients, UserDirectory

log = logging.getLogger(__name__)

INVENTORIES = "inventories"


def registry_of_process() -> CollectorRegistry:
    """Return a registry with the usual metrics of the process and of Python."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


async def users_of(
    config: Config, certificates: Certificates, environment: Environment, registry: CollectorRegistry
) -> tuple[Directory, Recipients]:
    """Return the users, and whom addresses reach. Log what is wrong with their files. Raises ConfigError."""
    users = _directory_of(config, certificates, environment, registry)
    await users.load()  # warn of a missing file now, not when the first mail arrives
    return users, Recipients(users, config.lmtp.aliases)


def _directory_of(
    config: Config, certificates: Certificates, environment: Environment, registry: CollectorRegistry
) -> Directory:
    """Return the users, before anything of them is known. Raises ConfigError."""
    users, clock_ms = config.users, environment.clock_ms
    quota = QuotaLimits(config.quota.storage_bytes, config.quota.messages)
    masters, separator = users.master_passwd_file, users.master_separator
    server = user_server(config)
    if server is not None:
        context = certificates.for_user_server
        return users_of_server(
            server, clock_ms, registry, context=context, quota=quota, masters=masters, separator=separator
        )
    return UserDirectory(
        users.passwd_file,
        quota=quota,
        clock_ms=clock_ms,
        site=site_of(config),
        is_from_cluster=users.source is UserSource.CLUSTER,
        masters=masters,
        separator=separator,
    )


def user_table_of(
    config: Config, mail: ClusterMailStore, store: Store, environment: Environment
) -> ClusterUsers | None:
    """Return the cluster's users, if users come from there. They are in the file once `run` has begun."""
    if config.users.source is not UserSource.CLUSTER:
        return None
    table = ClusterUsers(mail, config.users.passwd_file, environment.run_in_thread)
    store.listeners.append(table.note)
    return table


def configuration_of(
    config: Config,
    reread: Callable[[], Config] | None,
    users: Directory,
    quotas: Quotas,
    coordinator: Coordinator,
) -> Configuration | None:
    """Return what reads the configuration's file again, if there is a file."""
    if reread is None:
        return None

    def install(new: Config) -> None:
        users.set_quota(QuotaLimits(new.quota.storage_bytes, new.quota.messages))
        quotas.defer = new.quota.when_full is WhenFull.DEFER
        coordinator.reconfigure(new)

    return Configuration(config, reread, install)


def certificates_of(config: Config) -> Certificates:
    """Return the certificates. Raises ConfigError."""
    return Certificates(
        config.tls,
        config.certificates,
        of_clients=config.client_certificates,
        oauth=config.oauth,
        user_server=user_server(config),
    )


def provider_keys_of(
    config: Config, certificates: Certificates, environment: Environment, registry: CollectorRegistry
) -> ProviderKeys | None:
    """Return the keys of the identity provider, if one is configured. They are read once `run` has begun."""
    if config.oauth is None:
        return None
    read = key_source(config.oauth, environment, certificates.for_provider)
    return ProviderKeys(read, refresh_s=config.oauth.refresh_s, metrics=OauthMetrics(registry))


def keys_in_file(keys: ProviderKeys | None, config: Config) -> ProviderKeys | None:
    """Return the keys if they come from a file. Those at a URL do not keep certificates from being reloaded."""
    return keys if config.oauth is not None and isinstance(config.oauth.jwks, Path) else None


def tracer_of(store: Store, connections: Connections, environment: Environment) -> Tracer:
    """Return what tells operators of the commands on the node's links."""

    async def names(user: str) -> Mapping[bytes, str]:
        found = await store.read(partial(queries.ordered_folders, user=user))
        return {folder.mailbox_id: folder.name for folder in found}

    return Tracer(connections, FolderNames(names), environment.clock_ms, environment.run_in_thread)


def neighbours_of(connections: Connections) -> Iterator[Neighbour]:
    """Yield the linked nodes, as syncs with Dovecots see them. A socket in the file system may lead to any machine."""
    for sid, state in connections.peers.items():
        if state.link is not None:
            address = state.config.address
            is_here = isinstance(address, Address) and address.is_loopback
            yield Neighbour(sid, state.link.hello.capabilities, is_here)


def attachments_of(config: Config) -> Files | None:
    """Return the attachment store's directory, or None if it lies in the node's own data. Raises DataError."""
    directory = config.content.attachments
    if directory is None:
        return None
    make_directory(directory, "content.attachments")
    return DiskFiles(directory)


def directories_of(config: Config) -> list[Path]:
    """Return the directories that the node writes to."""
    return [config.node.data, *filter(None, (config.content.attachments, config.checkpoint.directory))]


def umask_of(config: Config) -> int:
    """Return the umask of a process that writes the node's files; see `file_modes`."""
    return umask_for(filter(None, (config.content.attachments, config.checkpoint.directory)))


def warn_of_files(config: Config, certificates: Certificates) -> None:
    """Log which files and directories others on this machine can read, and the faults of certificates.

    A node does not change the operator's own files.
    """
    warnings = [exposed_directory(config.node.data), *exposed_secrets(config)]
    shareable = filter(None, (config.content.attachments, config.checkpoint.directory))
    warnings += [exposed_directory(directory, may_be_shared=True) for directory in shareable]
    for warning in filter(None, (*warnings, *faults_of(config, certificates))):
        log.warning("%s", warning)


def exposed_secrets(config: Config) -> list[str]:
    """Return a warning for each file of secrets that everybody on this machine can read. Waits for the disk.

    A file of tokens has none, only hashes of long random secrets.
    """
    files = [config.users.passwd_file, config.users.master_passwd_file]
    files += [*(one.key for one in config.certificates), *((config.tls.key,) if config.tls is not None else ())]
    files += [config.doveadm.password_file, *(dovecot.password_file for dovecot in config.dovecots)]
    files += [config.ldap.password_file] if config.ldap is not None else []
    return [warning for file in dict.fromkeys(filter(None, files)) if (warning := exposed_file(file))]


def faults_of(config: Config, certificates: Certificates) -> Iterator[str]:
    """Return the reasons why others would refuse the certificates in use."""
    return certificate_faults(config.node.id, config.tls, certificates)


def archive_of(config: Config, environment: Environment) -> Archive:
    """Return the archive for the node's checkpoints.

    The object store is not contacted here: a node runs without it, and keeps its whole log.
    """
    where = config.checkpoint
    return Archive(ObjectStore(where.url, environment, where.endpoint), Home(config.node.cluster, config.node.id))


def destinations_of(config: Config) -> Destinations:
    """Return where the holder of a token may have inventories written."""
    checkpoint, places = config.checkpoint, config.http.directories
    if places is None:
        # Without `..`, which may be in a configuration, but not in what is compared with it.
        data, directory = (path and os.path.normpath(path) for path in (config.node.data, checkpoint.directory))
        places = tuple(f"{above}/{INVENTORIES}" for above in (data, directory or checkpoint.url.rstrip("/")))
    return Destinations(places, checkpoint.endpoint)


def tokens_of(config: Config) -> Tokens | None:
    """Return the tokens of the HTTP listener, or None if it asks for none."""
    if config.http.tokens is None:
        log.warning(
            "everybody on this machine can operate this node at http://%s, because it asks for no token; to close it,"
            " set `tokens` in [http], or leave `http` out of [listen]",
            config.listen.http,
        )
        return None
    tokens = Tokens(config.http.tokens)
    tokens.refresh()  # warn of a missing file now
    return tokens


def make_directory(path: Path, key: str = "node.data") -> None:
    """Create the directory for its owner alone. Raises DataError that names the configuration key."""
    try:
        path.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; check `{key}`") from error
