"""Content-addressed attachments in one directory, counted by the file system alone (docs/attachments.md).

Any number of processes on any number of machines share the directory, and nothing is taken to be atomic but creating
a file exclusively and making, renaming and removing files and directories. No locks, no links, nothing written in
place, no database: so it works on VFAT, CIFS and NFS. Everything here blocks; there is no trio.

`names` says what is called how; `files` is what is asked of a file system, `disk` a real one. The algorithms, in
`linking`, are generators that yield single `steps`, so that the model checker of the tests interleaves what really
runs. `store` is what the rest of the node uses; `sweep` mends what crashes leave. Nothing else may write to the
directory.
"""
