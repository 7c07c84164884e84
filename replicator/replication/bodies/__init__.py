"""Message bodies at this node: upload from clients, download from peers, reading, retention and repair.

Other packages use `Bodies`, and the types of its values; all else here is internal. This package depends on `links` and
`parallel` alone.
"""

from replicator.replication.bodies.bodies import Bodies
from replicator.replication.bodies.from_peers.download import Keepers
from replicator.replication.bodies.upkeep.orphan_sweep import AttachmentTotals

__all__ = ["AttachmentTotals", "Bodies", "Keepers"]
