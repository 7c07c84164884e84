"""The live protocol between this node and its peers, told to operators: `replicator trace`.

`tracer` observes the links while somebody listens; `descriptions` says what a command is about, without what it
carries; `traced` has what listeners are told. Nothing here changes a command, delays it, or sends one.
"""
