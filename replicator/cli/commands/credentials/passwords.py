"""Passwords from standard input."""

from __future__ import annotations

import sys

from replicator.cli.target import CommandError


def first_line() -> str:
    """Return the first line of standard input. Raises CommandError if there is none."""
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError("no password: standard input is empty; give the password as its first line")
    return password
