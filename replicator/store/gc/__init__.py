"""Garbage: expunged mail and the bodies that nothing needs any more, found before they are removed.

Used by replication's retention.
"""
