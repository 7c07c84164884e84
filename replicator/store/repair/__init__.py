"""Damage: finding it, mending it, and reading what a damaged database still has (design sections 6 and 11).

Used by checks, scrubs and rebuilds.
"""
