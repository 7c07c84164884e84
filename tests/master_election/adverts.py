"""Read the adverts that a node knows."""

from collections.abc import Mapping

from master_election.links import LinkTable
from protocol.commands import LinkAdvert


def adverts_of(table: LinkTable) -> Mapping[str, LinkAdvert]:
    """Return all adverts by SID, including those of unreachable nodes."""
    return table._adverts
