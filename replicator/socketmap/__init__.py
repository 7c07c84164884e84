"""Postfix's socketmap protocol (socketmap_table(5)): the door at which an MTA asks whether a recipient exists.

`netstrings` cuts what arrives into questions, without I/O; `server` answers them. A question is a netstring of the
map's name and a key, an answer one of a word and a text.
"""

from replicator.socketmap.server import SocketmapServer, SocketmapServices, places_of

__all__ = ["SocketmapServer", "SocketmapServices", "places_of"]
