"""Destinations to which the holder of a token may have the node write: below the places that the configuration names.

A token is for requests that come over a network, and the node writes with the rights of its user: an inventory anywhere
could fill any disk, and an endpoint of the client's choice would be shown the node's S3 credentials. Whoever opens the
node's own socket is its user, and could write there without the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from pathlib import PurePosixPath

from replicator.http.message import ProblemError

S3 = "s3://"


@dataclass(frozen=True, slots=True)
class Destinations:
    """Absolute paths and `s3://` URLs below which inventories may go, and the one endpoint of the latter."""

    places: tuple[str, ...] = ()
    endpoint: str | None = None

    def check(self, to: str, endpoint: str | None) -> None:
        """Check that an inventory may go there. Raises ProblemError. The operator answers for the links in a place."""
        if not any(_is_within(to, place) for place in self.places):
            allowed = ", ".join(self.places) or "nowhere"
            raise ProblemError(
                HTTPStatus.FORBIDDEN,
                f"to: by a token, inventories go below {allowed}; name a place there, or add this one to `directories`"
                " in [http] of the node's configuration",
            )
        if to.startswith(S3) and endpoint not in {None, self.endpoint}:
            raise ProblemError(
                HTTPStatus.FORBIDDEN,
                f"endpoint: by a token, only the one of [checkpoint], {self.endpoint or 'Amazon'}, can be used; leave"
                " it out",
            )


def _is_within(to: str, place: str) -> bool:
    if to.startswith(S3) or place.startswith(S3):
        return f"{to.rstrip('/')}/".startswith(f"{place.rstrip('/')}/")
    path = PurePosixPath(to)
    return ".." not in path.parts and path.is_relative_to(place)
