"""The mail store over the cluster: `MailStore` and `CoreMailStore` of `replicator.mail.mailstore`, carried out.

It reads from this node; it turns each change into a request and hands it to the coordinator. `mail_store` puts it
together: `folders` (names, with those used lately in `folder_cache`), `saving` (new messages), `synchronization` (what
imports and dsync need besides).
"""

from replicator.replication.cluster_mail_store.mail_store import ClusterMailStore

__all__ = ["ClusterMailStore"]
