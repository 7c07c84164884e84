"""Doors in processes of their own: work for clients that need not be in the core process uses further CPU cores.

The core process listens, and starts the doors' processes (`processes`), which inherit the listening sockets and accept
from them (`door`). All that a door asks of the node goes over one connection (`channel`, `packing`). `remote_mail` is
the mail at the door, and `mail_calls` its end in the core. The others have both ends: `uploads` (bodies on their way
to the core), `mail_feed` (what the core tells of changes), `remote_users`, `remote_places` and `remote_metrics`.
Nothing here knows how the node replicates.
"""
