"""The section [ldap]."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.config import Config, LdapConfig, load_config, user_server
from replicator.errors import ConfigError

LEAST = {
    "url": '"ldaps://ldap.example.org"',
    "base": '"ou=people,dc=example,dc=org"',
    "filter": '"(mail=%u)"',
    "user_attribute": '"uid"',
}


def load(directory: Path, more: str = "", **keys: str) -> Config:
    (directory / "password").touch()
    (directory / "ca.pem").touch()
    lines = "".join(f"{key} = {value}\n" for key, value in {**LEAST, **keys}.items() if value)
    file = directory / "node.toml"
    file.write_text(f'node.id = "a"\nusers.source = "ldap"\n{more}[ldap]\n{lines}', encoding="utf-8")
    return load_config(file, serving=True)


def test_least_and_all(tmp_path: Path) -> None:
    least = LdapConfig("ldaps://ldap.example.org", "ou=people,dc=example,dc=org", "(mail=%u)", "uid")
    assert user_server(load(tmp_path)) == least
    assert (least.host, least.port) == ("ldap.example.org", 636)
    ldap = load(
        tmp_path,
        url='"ldap://[::1]:3890/"',
        starttls="true",
        ca='"ca.pem"',
        bind_dn='"cn=mail"',
        password_file='"password"',
        user_attribute='"sAMAccountName"',
        quota_attribute='"mailQuota"',
        disabled_attribute='"nsAccountLock"',
        timeout='"2s"',
        cache='"5m"',
        cache_missing='"1s"',
    ).ldap
    assert ldap is not None
    assert (ldap.host, ldap.port, ldap.timeout_s, ldap.cache_s, ldap.cache_missing_s) == ("::1", 3890, 2, 300, 1)
    assert ldap.user_attribute == "sAMAccountName"
    assert (ldap.ca, ldap.password_file) == (tmp_path / "ca.pem", tmp_path / "password")


def test_section_is_not_used_for_other_sources(tmp_path: Path) -> None:
    config = load(tmp_path)
    file = tmp_path / "node.toml"
    file.write_text(file.read_text().replace('users.source = "ldap"\n', ""))
    assert user_server(load_config(file)) is None
    file.write_text('node.id = "a"\nusers.source = "ldap"\n')
    with pytest.raises(ConfigError, match=r"node.toml:2: source: .* add a section \[ldap\]"):
        load_config(file)
    assert config.ldap is not None


@pytest.mark.parametrize(
    ("keys", "line", "problem"),
    [
        ({"base": ""}, 3, "'base' is missing in"),
        ({"user_attribute": ""}, 3, "'user_attribute' is missing in"),
        ({"url": '"https://ldap"'}, 4, "url: expected a URL"),
        ({"url": '"ldap://ldap.example.org"'}, 4, "url: passwords would cross the network"),
        ({"url": '"ldap://127.0.0.1:99999"'}, 4, "url: expected a"),
        ({"starttls": "true"}, 8, "starttls: an ldaps:// URL begins with TLS"),
        ({"url": '"ldap://127.0.0.1"', "ca": '"ca.pem"'}, 8, "ca: it has no use without TLS"),
        ({"filter": '"(mail=alice)"'}, 6, "filter: expected a filter with %u"),
        ({"filter": '"(mail=%x%u)"'}, 6, "filter: expected a filter with %u"),
        ({"filter": '"mail=%u"'}, 6, "filter: expected a filter in parentheses"),
        ({"bind_dn": '"cn=mail"'}, 8, "bind_dn: its password is missing"),
        ({"password_file": '"password"'}, 8, "password_file: it has no use"),
        ({"password_file": '"nowhere"', "bind_dn": '"cn=mail"'}, 8, "password_file: "),
        ({"user_attribute": '"a b"'}, 7, "user_attribute: expected the name of an attribute"),
        ({"timeout": '"1m"'}, 8, "timeout: expected a duration from 0.1s to 15s"),
        ({"cache": '"0s"'}, 8, "cache: expected a duration from 1s"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, keys: dict[str, str], line: int, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, **keys)
    assert f"node.toml:{line}: {problem}" in str(refused.value)


def test_other_keys_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="passwd_file: users come from the server"):
        load(tmp_path, 'users.passwd_file = "x"\n')
    with pytest.raises(ConfigError, match="a server does not tell it"):
        load(tmp_path, '[[cluster]]\nname = "mail"\n')
