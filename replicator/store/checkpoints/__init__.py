"""Objects kept for years: checkpoints, the manifests that list them, and entries too large for a link.

Used by replication's checkpoints and links, and by replay of the log.
"""
