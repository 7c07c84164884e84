"""Connections to peers, and what entries look like on them.

Any other part of replication may use it; it knows none of them.
"""
