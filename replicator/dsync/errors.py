"""Errors of a conversation with a Dovecot."""

from __future__ import annotations


class DsyncError(Exception):
    """A peer that breaks the protocol, or asks for what does not exist here. The text says what was wrong."""


class PeerGoneError(Exception):
    """A peer that has left, or is silent for too long, before the end of the conversation."""
