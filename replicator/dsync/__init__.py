"""dsync (Dovecot's replication): by which Dovecots bring their mail here, and take mail from here.

A Dovecot connects to `door/` and begins a sync, as it would with another Dovecot; or the node begins one (`pushes/`).
`wire/` is the language of a sync, `rules/` its decisions, `conversation/` the order in which both sides talk; `replica`
is what it needs to know of a user's mail, and `node_mail/` has that from the node.
"""

from replicator.dsync.door.server import DsyncServer, DsyncServices
from replicator.dsync.node_mail.last_syncs import LastSyncFiles
from replicator.dsync.node_mail.mail_replica import MailReplicas

LOCKED_BY_OTHERS = "zz-"
"""Begin of this side's name: of two sides, the one with the smaller name locks the user, and Dovecot is to do that."""

__all__ = ["LOCKED_BY_OTHERS", "DsyncServer", "DsyncServices", "LastSyncFiles", "MailReplicas"]
