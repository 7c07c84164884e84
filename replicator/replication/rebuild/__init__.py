"""A new database for a node whose own is damaged, from its peers and from what can still be read (design section 11).

Used by `replicator.rebuild` alone.
"""
