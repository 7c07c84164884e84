"""The targets, by name."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.target import Target

NAMES = ("wire", "batch", "imap", "session", "lmtp", "http", "config")
"""Each is a module of this folder that has a `TARGET`."""


def load(name: str) -> Target:
    """Import the target's module and return the target. The guided fuzzer instruments what is imported here."""
    target = import_module(f"tests.fuzz.{name}").TARGET
    assert isinstance(target, Target)
    return target
