"""Access tokens of an identity provider: JWTs (RFC 7519, RFC 9068), checked with the keys that the provider publishes.

`key_set` reads a JWKS, `https_get` fetches it, `provider_keys` keeps the last good one and decides when to look again,
`access_token` decides about a token. A token is a secret: no log line, no error and no answer to a client has it.
"""

from replicator.oauth.access_token import AccessTokens, TokenRefusedError
from replicator.oauth.key_set import KeySet, KeySetError
from replicator.oauth.provider_keys import ProviderKeys, key_source

__all__ = ["AccessTokens", "KeySet", "KeySetError", "ProviderKeys", "TokenRefusedError", "key_source"]
