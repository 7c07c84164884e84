"""Errors that end an inventory, other than those of the disk, the object store and the database."""


class TargetError(Exception):
    """Raised if an inventory cannot be written to its target. The text says why, and what to do."""
