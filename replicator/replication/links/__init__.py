"""Connections to peers, and the form of entries on the wire.

Any other part of replication may use this folder; it uses none of them.
"""
