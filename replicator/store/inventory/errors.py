"""What ends an inventory, other than errors of the disk, the object store and the database."""


class TargetError(Exception):
    """An inventory cannot go there. The text says why, and what to do."""
