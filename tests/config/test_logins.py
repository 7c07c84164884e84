"""The sections [oauth] and [client_certificates]."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from replicator.config import ALGORITHMS, ClientCertificatesConfig, Config, OauthConfig, load_config
from replicator.errors import ConfigError

OAUTH = {
    "issuer": '"https://id.example.org"',
    "audience": '"mail"',
    "jwks": '"https://id.example.org/keys"',
    "claim": '"email"',
}
CERTIFICATE = '[[certificate]]\nfile = "mail.pem"\nkey = "mail.pem"\n'


PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def load(directory: Path, text: str) -> Config:
    for name in ("mail.pem", "keys.json", "crl.pem"):
        (directory / name).touch()
    file = directory / "node.toml"
    file.write_text(f'node.id = "a"\n{text}', encoding="utf-8")
    return load_config(file, serving=True)


def oauth(**keys: str) -> str:
    """Return the section with these keys changed, each in TOML; "" leaves a key out."""
    lines = (f"{key} = {value}\n" for key, value in {**OAUTH, **keys}.items() if value)
    return "[oauth]\n" + "".join(lines)


def test_oauth_needs_four_keys(tmp_path: Path) -> None:
    assert load(tmp_path, "").oauth is None
    assert load(tmp_path, oauth()).oauth == OauthConfig(
        "https://id.example.org", "mail", "https://id.example.org/keys", "email"
    )
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, "[oauth]\n")
    said = str(refused.value).splitlines()
    assert [line.partition("node.toml")[2].partition(":")[2] for line in sorted(said)] == [
        f"2: {key!r} is missing in [oauth]: add, for example, {key} = {value}" for key, value in sorted(OAUTH.items())
    ]


def test_all_keys_of_oauth(tmp_path: Path) -> None:
    more = {"ca": '"mail.pem"', "scopes": '["imap", "openid"]', "algorithms": '["ES256"]', "refresh": '"10m"'}
    config = load(tmp_path, oauth(**more)).oauth
    assert config is not None
    assert (config.ca, config.scopes, config.algorithms) == (tmp_path / "mail.pem", ("imap", "openid"), ("ES256",))
    assert config.refresh_s == 600
    config = load(tmp_path, oauth(jwks='"keys.json"')).oauth
    assert config is not None
    assert config.jwks == tmp_path / "keys.json"


def test_manual_shows_all_keys_of_oauth_with_their_defaults() -> None:
    commented = PAGE.read_text("utf-8").partition("# [oauth]")[2].partition("\n\n")[0]
    shown = tomllib.loads("\n".join(line.removeprefix("# ") for line in commented.splitlines()[1:]))
    default = OauthConfig(**{key: shown.pop(key) for key in OAUTH})
    assert shown.pop("ca")
    assert shown == {"scopes": list(default.scopes), "algorithms": list(default.algorithms), "refresh": "1h"}
    assert default.refresh_s == 3600


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"issuer": '"two words"'}, "3: issuer: expected 1 to 1024 printable ASCII characters without spaces; not"),
        ({"audience": "5"}, "4: audience: expected 1 to 1024 printable"),
        ({"jwks": '"none.json"'}, "5: jwks: there is no file"),
        ({"jwks": '"http://id.example.org/keys"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https://id.example.org"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https://user:password@id.example.org/"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https://id.example.org/#a"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https://id.example.org:99999/"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https://id.example.org:0/"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https://id.example.org/a b"'}, "5: jwks: expected a file, or a URL such as"),
        ({"jwks": '"https:///keys"'}, "5: jwks: expected a file, or a URL such as"),
        ({"claim": '""'}, "6: claim: expected 1 to 1024 printable"),
        ({"scopes": '"imap"'}, '7: scopes: expected a list of at most 100 words such as ["mail"], not'),
        ({"scopes": '["two words"]'}, "7: scopes: expected 1 to 1024 printable"),
        ({"algorithms": '["HS256"]'}, f"7: algorithms: expected some of {', '.join(ALGORITHMS)} (those with a private"),
        ({"algorithms": '["none"]'}, "7: algorithms: expected some of"),
        ({"algorithms": "[]"}, "7: algorithms: expected at least one algorithm"),
        ({"refresh": '"59s"'}, "7: refresh: expected a duration from 60s to"),
        ({"ca": '"none.pem"'}, "7: ca: there is no file"),
        ({"jwks": '"keys.json"', "ca": '"mail.pem"'}, "7: ca: it is for an https:// URL, but `jwks` is a file"),
        ({"scope": '["imap"]'}, "7: unknown key 'scope' in [oauth]; it belongs in [mastership]"),
        ({"algorithm": '["ES256"]'}, "7: unknown key 'algorithm' in [oauth]; the most similar one is 'algorithms'"),
    ],
)
def test_problem_is_reported_with_line_and_remedy(tmp_path: Path, keys: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, oauth(**keys))
    assert str(refused.value).startswith(f"{tmp_path / 'node.toml'}:{problem}")


def test_certificates_of_clients(tmp_path: Path) -> None:
    section = '[client_certificates]\nca = "mail.pem"\n'
    assert load(tmp_path, "").client_certificates is None
    config = load(tmp_path, section + CERTIFICATE)
    assert config.client_certificates == ClientCertificatesConfig(tmp_path / "mail.pem")
    config = load(tmp_path, section + 'crl = "crl.pem"\n' + CERTIFICATE)
    assert config.client_certificates == ClientCertificatesConfig(tmp_path / "mail.pem", tmp_path / "crl.pem")
    for text, problem in (
        (section, "2: certificates of clients need TLS, so add a [[certificate]]"),
        ("[client_certificates]\n" + CERTIFICATE, "2: 'ca' is missing in [client_certificates]"),
        (section + 'crl = "none.pem"\n' + CERTIFICATE, "4: crl: there is no file"),
    ):
        with pytest.raises(ConfigError) as refused:
            load(tmp_path, text)
        assert str(refused.value).startswith(f"{tmp_path / 'node.toml'}:{problem}")
