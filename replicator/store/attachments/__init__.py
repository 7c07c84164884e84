"""Content-addressed attachments in one directory, with reference counting by the file system (docs/attachments.md).

Any number of processes on any number of machines share the directory. The only operations assumed to be atomic are
creating a file exclusively, and making, renaming and removing files and directories. There are no locks, no links, no
writing in place and no database, so the store works on VFAT, CIFS and NFS. Everything here blocks; there is no trio.

`names` defines the names; `files` is the interface to a file system, `disk` a real one. The algorithms, in `linking`,
are generators that yield single `steps`, so that the tests' model checker interleaves the code that really runs.
`store` is what the rest of the node uses; `sweep` repairs what crashes leave. Nothing else may write to the directory.
"""
