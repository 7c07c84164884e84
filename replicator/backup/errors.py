"""The error of whoever makes or restores a backup."""

from __future__ import annotations


class BackupError(Exception):
    """A backup that cannot be made, or not be used. The text is for the operator: what, where, and what to do."""
