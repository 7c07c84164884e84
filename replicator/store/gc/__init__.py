"""Garbage: expunged mail, and bodies that no message needs, found before they are removed.

Used by replication's retention.
"""
