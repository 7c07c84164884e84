"""Damage: finding it, repairing it, and reading what survives in a damaged database (design sections 6 and 11).

Used by checks, scrubs and rebuilds.
"""
