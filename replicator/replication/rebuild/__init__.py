"""Rebuilds a damaged node's database from its peers and from what can still be read of it (design section 11).

Only `replicator.rebuild` uses this package.
"""
