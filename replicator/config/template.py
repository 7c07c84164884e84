"""Output of a configuration as a commented file, for `replicator cluster run` and as a start for operators."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from urllib.parse import unquote, urlsplit

from replicator.config.model import (
    ALGORITHMS,
    REFRESH_S,
    CertificateConfig,
    ClientCertificatesConfig,
    ClusterConfig,
    Config,
    DovecotAuthConfig,
    DovecotConfig,
    EndpointConfig,
    HttpConfig,
    LdapConfig,
    LimitsConfig,
    OauthConfig,
    PeerConfig,
    ProxyConfig,
    QuotaConfig,
    TlsConfig,
    UsersConfig,
    UserServerConfig,
    UserSource,
)
from replicator.config.values import DURATION_UNITS_S
from replicator.runtime.sizes import SIZE_UNITS_BYTES


def config_text(config: Config, directory: Path) -> str:
    """Return TOML that `load_config` reads as `config` from any file in `directory`. Paths within become relative.

    Durations are exact to a microsecond.
    """
    directory = directory.absolute()
    sections = [
        _node(config, directory),
        _listen(config),
        *(_peer(peer) for peer in config.peers),
        _writes(config),
        _users(config.users, directory),
        _storage(config, directory),
    ]
    if config.lmtp.aliases is not None:
        sections.append(f"[lmtp]\naliases = {_path(config.lmtp.aliases, directory)}    # as postmap(1) reads them\n")
    if config.doveadm.password_file is not None:
        file = _path(config.doveadm.password_file, directory)
        sections.append(f"[doveadm]\npassword_file = {file}    # its first line is Dovecot's doveadm_password\n")
    if config.tls is not None:
        sections.append(_tls(config.tls, directory))
    elif config.plain_links:
        sections.append('[tls]\nmode = "none"    # links are not encrypted\n')
    if config.proxy != ProxyConfig():
        sections.append(_proxy(config.proxy))
    sections += map(_cluster, config.clusters)
    sections += [_certificate(certificate, directory) for certificate in config.certificates]
    if config.client_certificates is not None:
        sections.append(_client_certificates(config.client_certificates, directory))
    if config.oauth is not None:
        sections.append(_oauth(config.oauth, directory))
    if config.ldap is not None:
        sections.append(_ldap(config.ldap, directory))
    if config.endpoint is not None:
        sections.append(_endpoint(config.endpoint, directory))
    if config.dovecot_auth is not None:
        sections.append(_dovecot_auth(config.dovecot_auth, directory))
    sections += [_dovecot(dovecot, directory) for dovecot in config.dovecots]
    if config.limits != LimitsConfig():
        sections.append(_limits(config.limits))
    sections.append(_quota(config.quota))
    sections.append(f"[search]\nfull_text = {json.dumps(config.search.full_text)}    # kept for SEARCH\n")
    if config.http != HttpConfig():
        sections.append(_http(config.http, directory))
    sections.append(f"[workers]\ndoors = {config.workers.doors}    # processes that serve IMAP and LMTP; 0: none\n")
    return "\n".join(sections)


def _node(config: Config, directory: Path) -> str:
    node = config.node
    return (
        "[node]\n"
        f"id = {_quoted(node.id)}\n"
        f"data = {_path(node.data, directory)}    # paths are relative to this file\n"
        f"cluster = {_quoted(node.cluster)}\n"
        f"priority = {node.priority}    # the reachable node with the lowest priority, then the lowest id, is root\n"
        + (f"removed = {json.dumps(node.removed)}    # nodes that have left for good\n" if node.removed else "")
    )


def _listen(config: Config) -> str:
    listen = config.listen
    doors = {key.name: getattr(listen, key.name) for key in fields(listen)}
    lines = [f"{door} = {_quoted(str(address))}\n" for door, address in doors.items() if address is not None]
    return "[listen]    # leave a line out to switch that listener off\n" + "".join(lines)


def _peer(peer: PeerConfig) -> str:
    return f"[[peer]]\nid = {_quoted(peer.id)}\naddress = {_quoted(str(peer.address))}\n"


def _writes(config: Config) -> str:
    durability, mastership = config.durability, config.mastership
    return (
        "[durability]\n"
        f"copies = {durability.copies}    # nodes with a change on disk before its client hears OK\n"
        f'when_short = {_quoted(durability.when_short)}    # "proceed" or "refuse" changes while fewer are reachable\n'
        "\n"
        "[mastership]\n"
        f'scope = {_quoted(mastership.scope)}    # or "user", "domain", "global", "dynamic"\n'
        f"heartbeat = {_duration(mastership.heartbeat_s)}\n"
        f"timeout = {_duration(mastership.timeout_s)}\n"
    )


def _users(users: UsersConfig, directory: Path) -> str:
    lines = ["[users]"]
    if users.source.is_server:
        lines.append(f"source = {_quoted(users.source)}    # see [{users.source}]")
    elif users.source is UserSource.CLUSTER:
        lines.append('source = "cluster"    # the same at all nodes; see `replicator user`')
    else:
        lines.append(f"passwd_file = {_path(users.passwd_file, directory)}    # user:{{SCHEME}}hash")
    if users.master_passwd_file is not None:
        lines.append(f"master_passwd_file = {_path(users.master_passwd_file, directory)}    # who log in as others")
    if users.master_separator is not None:
        lines.append(f"master_separator = {_quoted(users.master_separator)}    # user, this character, master")
    return "\n".join(lines) + "\n"


def _storage(config: Config, directory: Path) -> str:
    shared = config.checkpoint.shared
    return (
        "[conflict]\n"
        f'uid = {_quoted(config.conflict.uid)}    # or "uidvalidity"\n'
        "\n"
        "[log]    # entries are kept until all nodes have them, or a limit is reached\n"
        f"keep = {_duration(config.log.keep_s)}    # time limit; units: ms, s, m, h, d\n"
        f"max_size = {_size(config.log.max_size_bytes)}    # size limit; units: B, KiB, MiB, GiB\n"
        "\n"
        "[content]\n"
        f"inline_max = {_size(config.content.inline_max_bytes)}    # larger MIME parts go to the attachment store\n"
        f"keep_expunged = {_duration(config.content.keep_expunged_s)}    # how long `undelete` can restore a message\n"
        + (f"attachments = {_path(config.content.attachments, directory)}\n" if config.content.attachments else "")
        + "\n"
        "[checkpoint]    # snapshots of all mailboxes and folders, without message bodies\n"
        f"url = {_url(config.checkpoint.url, directory)}    # or s3://bucket/prefix\n"
        + (f"endpoint = {_quoted(config.checkpoint.endpoint)}\n" if config.checkpoint.endpoint else "")
        + (
            "shared = true    # all nodes reach the same objects, and exchange very large changes by them\n"
            if shared
            else ""
        )
    )


def tls_text(sid: str) -> str:
    """Return the section [tls] of a node whose files lie beside its configuration."""
    directory = Path("/")
    return _tls(TlsConfig(directory / f"{sid}.pem", directory / f"{sid}.key", directory / "ca.pem"), directory)


def _tls(tls: TlsConfig, directory: Path) -> str:
    ca = "" if tls.ca is None else f"ca = {_path(tls.ca, directory)}    # signs the certificates of all nodes\n"
    return f"[tls]\ncertificate = {_path(tls.certificate, directory)}\nkey = {_path(tls.key, directory)}\n{ca}"


def _proxy(proxy: ProxyConfig) -> str:
    lists = {"trusted": proxy.trusted, "private": proxy.private}
    return "[proxy]\n" + "".join(
        f"{key} = {json.dumps([str(network) for network in networks])}\n" for key, networks in lists.items() if networks
    )


def _cluster(cluster: ClusterConfig) -> str:
    doors = {"imap": cluster.imap, "lmtp": cluster.lmtp}
    lines = "".join(f'{door} = "{address}"\n' for door, address in doors.items() if address)
    return f'[[cluster]]    # of the site, for proxies\nname = "{cluster.name}"\n{lines}'


def _certificate(certificate: CertificateConfig, directory: Path) -> str:
    file, key = _path(certificate.file, directory), _path(certificate.key, directory)
    return f"[[certificate]]    # for mail clients and MTAs, by the names in it\nfile = {file}\nkey = {key}\n"


def _client_certificates(clients: ClientCertificatesConfig, directory: Path) -> str:
    crl = f"crl = {_path(clients.crl, directory)}\n" if clients.crl else ""
    return f"[client_certificates]    # with which mail clients log in\nca = {_path(clients.ca, directory)}\n{crl}"


def _oauth(oauth: OauthConfig, directory: Path) -> str:
    jwks = _quoted(oauth.jwks) if isinstance(oauth.jwks, str) else _path(oauth.jwks, directory)
    return (
        "[oauth]    # access tokens with which mail clients log in\n"
        f"issuer = {_quoted(oauth.issuer)}\n"
        f"audience = {_quoted(oauth.audience)}\n"
        f"jwks = {jwks}    # the provider's keys\n"
        + (f"ca = {_path(oauth.ca, directory)}    # of the certificate at that URL\n" if oauth.ca else "")
        + f"claim = {_quoted(oauth.claim)}    # names the user\n"
        + (f"scopes = {json.dumps(oauth.scopes)}\n" if oauth.scopes else "")
        + (f"algorithms = {json.dumps(oauth.algorithms)}\n" if oauth.algorithms != ALGORITHMS else "")
        + (f"refresh = {_duration(oauth.refresh_s)}\n" if oauth.refresh_s != REFRESH_S else "")
    )


def _ldap(ldap: LdapConfig, directory: Path) -> str:
    paths = {"ca": ldap.ca, "password_file": ldap.password_file}
    keys = ("bind_dn", "quota_attribute", "disabled_attribute")
    given = {key: value for key in keys if (value := getattr(ldap, key)) is not None}
    return (
        "[ldap]    # the server that knows the users\n"
        f"url = {_quoted(ldap.url)}\n"
        + ("starttls = true\n" if ldap.starttls else "")
        + "".join(f"{key} = {_path(path, directory)}\n" for key, path in paths.items() if path is not None)
        + f"base = {_quoted(ldap.base)}\n"
        f"filter = {_quoted(ldap.filter)}    # %u: a name; %n, %d: before and after its @\n"
        f"user_attribute = {_quoted(ldap.user_attribute)}    # the user's own name, of which the mail is\n"
        + "".join(f"{key} = {_quoted(value)}\n" for key, value in given.items())
        + _patience(ldap)
    )


def _endpoint(endpoint: EndpointConfig, directory: Path) -> str:
    paths = {"ca": endpoint.ca, "token_file": endpoint.token_file}
    return (
        "[endpoint]    # the program that knows the users\n"
        f"url = {_quoted(endpoint.url)}\n"
        + "".join(f"{key} = {_path(path, directory)}\n" for key, path in paths.items() if path is not None)
        + _patience(endpoint)
    )


def _dovecot(dovecot: DovecotConfig, directory: Path) -> str:
    return (
        "[[dovecot]]    # with which users' mail is synced\n"
        f"address = {_quoted(str(dovecot.address))}\n"
        f"password_file = {_path(dovecot.password_file, directory)}    # its first line is the doveadm_password there\n"
        f"tls = {json.dumps(dovecot.tls)}\n"
        + (f"ca = {_path(dovecot.ca, directory)}\n" if dovecot.ca is not None else "")
        + f"users = [{', '.join(map(_quoted, dovecot.users))}]\n"
        f"sync_every = {_duration(dovecot.sync_every_s)}    # to find its own changes\n"
        f"full_sync_every = {_duration(dovecot.full_sync_every_s)}    # to compare all mails\n"
        f"replicator = {json.dumps(dovecot.replicator)}    # whether that of the Dovecot syncs with the cluster, too\n"
    )


def _dovecot_auth(dovecot: DovecotAuthConfig, directory: Path) -> str:
    return (
        "[dovecot_auth]    # the Dovecot that knows the users\n"
        f"userdb = {_path(dovecot.userdb, directory)}    # its socket auth-userdb\n"
        f"auth = {_path(dovecot.auth, directory)}    # its socket auth-client\n" + _patience(dovecot)
    )


def _patience(server: UserServerConfig) -> str:
    return (
        f"timeout = {_duration(server.timeout_s)}\n"
        f"cache = {_duration(server.cache_s)}    # how long an answer about a user is good\n"
        f"cache_missing = {_duration(server.cache_missing_s)}    # and that there is none\n"
    )


def _http(http: HttpConfig, directory: Path) -> str:
    tokens = f"tokens = {_path(http.tokens, directory)}\n" if http.tokens else ""
    if http.directories is None:
        return f"[http]\n{tokens}"
    return f"[http]\n{tokens}directories = [{', '.join(map(_quoted, http.directories))}]\n"


def _quota(quota: QuotaConfig) -> str:
    return (
        "[quota]    # of each user; the passwd-file can say otherwise of one\n"
        + (f"storage = {_size(quota.storage_bytes)}\n" if quota.storage_bytes is not None else "")
        + (f"messages = {quota.messages}\n" if quota.messages is not None else "")
        + f'when_full = {_quoted(quota.when_full)}    # "refuse" or "defer" what LMTP delivers\n'
    )


def _limits(limits: LimitsConfig) -> str:
    changed = asdict(limits).items() - asdict(LimitsConfig()).items()
    return "[limits]\n" + "".join(f"{key} = {limit}\n" for key, limit in sorted(changed))


def _quoted(text: str) -> str:
    # JSON's escapes are a subset of those in TOML's basic strings, but TOML also requires DEL to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _path(path: Path, directory: Path) -> str:
    return _quoted(str(path.relative_to(directory) if path.is_relative_to(directory) else path))


def _url(url: str, directory: Path) -> str:
    if not url.startswith("file:///"):
        return _quoted(url)
    path = Path(unquote(urlsplit(url).path))
    return _quoted(f"file:{path.relative_to(directory) if path.is_relative_to(directory) else path}")


def _duration(seconds: float) -> str:
    microseconds = round(seconds * 1_000_000)
    for unit, unit_s in reversed(DURATION_UNITS_S.items()):
        count, rest = divmod(microseconds, round(unit_s * 1_000_000))
        if rest == 0:
            return _quoted(f"{count}{unit}")
    return _quoted(f"{microseconds / 1000:.3f}ms")


def _size(size_bytes: int) -> str:
    unit, unit_bytes = next(
        (unit, unit_bytes) for unit, unit_bytes in reversed(SIZE_UNITS_BYTES.items()) if size_bytes % unit_bytes == 0
    )
    return _quoted(f"{size_bytes // unit_bytes}{unit}")
