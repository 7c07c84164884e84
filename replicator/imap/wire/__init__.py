"""Octets to commands, and responses to octets: framing, the grammar, typed commands, refusals.

All of the door uses it; it knows nothing of sessions.
"""
