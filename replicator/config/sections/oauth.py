"""Access tokens of an identity provider: [oauth]."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from replicator.config import values
from replicator.config.formatting import duration_text, path_text, quoted
from replicator.config.source import Section

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures of access tokens (RFC 7518 section 3.1, RFC 8037 section 3.1, RFC 9864), all by a private key.

With others, such as HS256, whoever can check a token can make one, too.
"""

REFRESH_S = 3600.0


@dataclass(frozen=True, slots=True)
class OauthConfig:
    """Access tokens of an identity provider with which mail clients may log in.

    `jwks`: a file with the provider's keys, or their `https://` URL. `ca`: a PEM file with the CA of the URL's
    certificate; None: the system's CAs. `claim` names the user. `scopes`: all are required.
    """

    issuer: str
    audience: str
    jwks: Path | str
    claim: str
    ca: Path | None = None
    scopes: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS
    refresh_s: float = REFRESH_S


def read_oauth(section: Section, file: values.PathParser) -> OauthConfig | None:
    """Read [oauth]; None: the file has no such section."""
    keys: Path | str = "https://id.example.org/keys"
    if not section.given:
        section.learn(*(key.name.removesuffix("_s") for key in fields(OauthConfig)))
        return None
    oauth = OauthConfig(
        issuer=section.take_required("issuer", values.word, "https://id.example.org"),
        audience=section.take_required("audience", values.word, "mail"),
        jwks=section.take_required("jwks", values.keys_location(file), keys),
        claim=section.take_required("claim", values.word, "email"),
        ca=section.take("ca", file, None),
        scopes=section.take("scopes", values.words, ()),
        algorithms=section.take("algorithms", _algorithms, ALGORITHMS),
        refresh_s=section.take("refresh", values.duration(lowest_s=60.0), REFRESH_S),
    )
    if oauth.ca is not None and isinstance(oauth.jwks, Path):
        section.problem("ca", "it is for an https:// URL, but `jwks` is a file; leave one of them out")
    return oauth


def _algorithms(value: object) -> tuple[str, ...]:
    """Parse a list of signature algorithms for access tokens."""
    names = values.words(value)
    for name in names:
        if name not in ALGORITHMS:
            raise ValueError(f"expected some of {', '.join(ALGORITHMS)} (those with a private key); not {name!r}")
    if not names:
        raise ValueError("expected at least one algorithm, or no token can be accepted")
    return names


def format_oauth(oauth: OauthConfig | None, directory: Path) -> str:
    """Return [oauth] as a file in `directory` has it; empty for None."""
    if oauth is None:
        return ""
    jwks = quoted(oauth.jwks) if isinstance(oauth.jwks, str) else path_text(oauth.jwks, directory)
    return (
        "[oauth]    # access tokens with which mail clients log in\n"
        f"issuer = {quoted(oauth.issuer)}\n"
        f"audience = {quoted(oauth.audience)}\n"
        f"jwks = {jwks}    # the provider's keys\n"
        + (f"ca = {path_text(oauth.ca, directory)}    # of the certificate at that URL\n" if oauth.ca else "")
        + f"claim = {quoted(oauth.claim)}    # names the user\n"
        + (f"scopes = {json.dumps(oauth.scopes)}\n" if oauth.scopes else "")
        + (f"algorithms = {json.dumps(oauth.algorithms)}\n" if oauth.algorithms != ALGORITHMS else "")
        + (f"refresh = {duration_text(oauth.refresh_s)}\n" if oauth.refresh_s != REFRESH_S else "")
    )
