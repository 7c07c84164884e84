"""Errors that end an inventory, other than those of the disk, the object store and the database."""


class TargetError(Exception):
    """An obstacle to writing an inventory to its target. The text says why, and what to do."""
