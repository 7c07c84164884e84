"""Objects that last for years: checkpoints, the manifests that list them, entries too large for a link.

Used by replication's checkpoints and links, and where the log is replayed.
"""
