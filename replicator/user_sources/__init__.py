"""Servers elsewhere that know the users, and how they are asked.

`ldap` asks an LDAP server, by a library that only nodes with such a server need; `ldap_filter` writes its filters, and
`bounded_socket` bounds its answers. `endpoint` asks a program of the operator's over HTTP, and `dovecot` a Dovecot.
`limits` reads quotas, and `certificates` why one is refused. What answers mean for log-ins and mail is decided in
`replicator.users.elsewhere`.
"""

from replicator.user_sources.sources import server_faults, users_of_server

__all__ = ["server_faults", "users_of_server"]
