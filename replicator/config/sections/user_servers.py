"""Servers elsewhere that know the users: [ldap], [endpoint] and [dovecot_auth]."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from replicator.config import values
from replicator.config.formatting import duration_text, path_text, quoted
from replicator.config.source import Section, Source
from replicator.runtime.addresses import is_loopback

SERVER_TIMEOUT_MAX_S = 15.0
"""A client that logs in waits for half a minute or longer. The first request that is not answered ends the log-in; else
there is one for each part of the name, one for the user's own name, and one for the password.
"""

SERVER_CACHE_MAX_S = 3600.0


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


def read_ldap(section: Section, file: values.PathParser) -> LdapConfig | None:
    """Read [ldap]; None: the file has no such section."""
    if not section.given:
        section.learn(*(key.name.removesuffix("_s") for key in fields(LdapConfig)))
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


def format_ldap(ldap: LdapConfig | None, directory: Path) -> str:
    """Return [ldap] as a file in `directory` has it; empty for None."""
    if ldap is None:
        return ""
    paths = {"ca": ldap.ca, "password_file": ldap.password_file}
    keys = ("bind_dn", "quota_attribute", "disabled_attribute")
    given = {key: value for key in keys if (value := getattr(ldap, key)) is not None}
    return (
        "[ldap]    # the server that knows the users\n"
        f"url = {quoted(ldap.url)}\n"
        + ("starttls = true\n" if ldap.starttls else "")
        + "".join(f"{key} = {path_text(path, directory)}\n" for key, path in paths.items() if path is not None)
        + f"base = {quoted(ldap.base)}\n"
        f"filter = {quoted(ldap.filter)}    # %u: a name; %n, %d: before and after its @\n"
        f"user_attribute = {quoted(ldap.user_attribute)}    # the user's own name, of which the mail is\n"
        + "".join(f"{key} = {quoted(value)}\n" for key, value in given.items())
        + _format_patience(ldap)
    )


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


def read_endpoint(section: Section, file: values.PathParser) -> EndpointConfig | None:
    """Read [endpoint]; None: the file has no such section."""
    if not section.given:
        section.learn(*(key.name.removesuffix("_s") for key in fields(EndpointConfig)))
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


def format_endpoint(endpoint: EndpointConfig | None, directory: Path) -> str:
    """Return [endpoint] as a file in `directory` has it; empty for None."""
    if endpoint is None:
        return ""
    paths = {"ca": endpoint.ca, "token_file": endpoint.token_file}
    return (
        "[endpoint]    # the program that knows the users\n"
        f"url = {quoted(endpoint.url)}\n"
        + "".join(f"{key} = {path_text(path, directory)}\n" for key, path in paths.items() if path is not None)
        + _format_patience(endpoint)
    )


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


def dovecot_auth_name(source: Source) -> str:
    """Return the name of the section of the Dovecot that knows the users: `[dovecot]` in version 0.2.

    One with an address is meant as a `[[dovecot]]`.
    """
    former = source.root.get("dovecot")
    return "dovecot" if isinstance(former, dict) and "address" not in former else "dovecot_auth"


def read_dovecot_auth(source: Source, directory: Path) -> DovecotAuthConfig | None:
    """Read [dovecot_auth]; None: the file has no such section."""
    section = source.section(dovecot_auth_name(source))
    if not section.given:
        section.learn(*(key.name.removesuffix("_s") for key in fields(DovecotAuthConfig)))
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


def format_dovecot_auth(dovecot: DovecotAuthConfig | None, directory: Path) -> str:
    """Return [dovecot_auth] as a file in `directory` has it; empty for None."""
    if dovecot is None:
        return ""
    return (
        "[dovecot_auth]    # the Dovecot that knows the users\n"
        f"userdb = {path_text(dovecot.userdb, directory)}    # its socket auth-userdb\n"
        f"auth = {path_text(dovecot.auth, directory)}    # its socket auth-client\n" + _format_patience(dovecot)
    )


UserServerConfig = LdapConfig | EndpointConfig | DovecotAuthConfig
"""A server that knows the users."""


def _format_patience(server: UserServerConfig) -> str:
    return (
        f"timeout = {duration_text(server.timeout_s)}\n"
        f"cache = {duration_text(server.cache_s)}    # how long an answer about a user is good\n"
        f"cache_missing = {duration_text(server.cache_missing_s)}    # and that there is none\n"
    )
