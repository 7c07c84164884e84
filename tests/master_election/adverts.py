"""The adverts that a node knows."""

from collections.abc import Mapping

from master_election.links import LinkTable
from protocol.commands import LinkAdvert


def adverts_of(table: LinkTable) -> Mapping[str, LinkAdvert]:
    """By SID, also those of nodes that cannot be reached."""
    return table._adverts
