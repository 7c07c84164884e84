"""Rules for comparing and joining histories: contexts, rows, digests.

These are pure rules without I/O, the same for a fork, for `replicator resync` and for the batch. They do not depend on
how a node stores, sends or shows anything.
"""
