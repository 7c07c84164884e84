"""dsync (Dovecot's replication): by which Dovecots bring their mail here, and take mail from here.

A Dovecot connects to `door/` and begins a sync, as it would with another Dovecot; or the node begins one (`pushes/`).
`wire/` is the language of a sync, `rules/` its decisions, `conversation/` the order in which both sides talk; `replica`
is what it needs to know of a user's mail, and `node_mail/` has that from the node. `syncs` puts all together.
"""

from replicator.dsync.pushes.neighbours import Neighbour, dovecot_capabilities
from replicator.dsync.syncs import DovecotSyncs

__all__ = ["DovecotSyncs", "Neighbour", "dovecot_capabilities"]
