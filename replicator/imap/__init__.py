"""The IMAP door (RFC 3501): `server` serves a connection, a `session` acts on the mail store.

Subpackages, from the lowest: `wire` turns octets into commands and answers into octets; `text` decodes and compares
what people read; `rendering` formats the parts of a message that a FETCH returns; `matching` finds the messages of a
SEARCH; `ordering` puts those of a SORT or THREAD in order; `handlers` carry out one group of commands each.
"""
