"""What histories mean: contexts, rows, digests.

Pure rules without I/O, the same for a fork, for `replicator resync` and for the batch. Nothing here may know how
a node stores, sends or shows anything.
"""
