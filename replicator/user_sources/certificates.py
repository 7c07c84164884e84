"""The key of the configuration at fault for a refused certificate."""

from __future__ import annotations

import re

_UNKNOWN_ISSUER = re.compile("issuer certificate|self.signed")
"""OpenSSL's words for a certificate that no CA has signed which is trusted."""


def key_of_refusal(reason: str) -> str:
    """Return the key to look at first: `ca`, or for all other reasons, such as the server's name, `url`."""
    return "ca" if _UNKNOWN_ISSUER.search(reason) else "url"
