"""The IMAP door (RFC 3501): `server` serves a connection, a `session` acts on the mail store.

Rooms, from the lowest: `wire` turns octets into commands and answers into octets; `rendering` makes what a FETCH shows
of a message; `matching` finds what a SEARCH asks for; `handlers` carry out one group of commands each.
"""
