"""dsync (Dovecot's replication): the door by which a Dovecot brings its mail here, and takes mail from here.

Dovecot is the master of each sync: `doveadm sync`, `doveadm backup` and its replicator connect here as they would to
another Dovecot. `doveadm` is the protocol up to the beginning of a sync, `wire/` the language of a sync, `rules/` its
decisions, `conversation/` the order in which both sides talk; `replica` is what it needs to know of a user's mail, and
`server` moves the bytes.
"""

from replicator.dsync.mail_replica import LastSyncs, MailReplica
from replicator.dsync.server import LOCKED_BY_OTHERS, DsyncServer, DsyncServices

__all__ = ["LOCKED_BY_OTHERS", "DsyncServer", "DsyncServices", "LastSyncs", "MailReplica"]
