"""Doors in processes of their own: accepting, TLS, parsing, hashing and compressing use further cores.

The core process listens, and starts the doors' processes (`processes`), which inherit the listening sockets and accept
from them (`door`). All that a door asks of the node goes over one connection (`channel`): mail (`remote_mail`), places
(`remote_places`) and metrics (`remote_metrics`), of each of which one module has both ends. Nothing here knows how the
node replicates.
"""
