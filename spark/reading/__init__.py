"""Inventories: each checked as a whole before any row is trusted, and then read as DataFrames (docs/inventory.md).

Used by `audit` and `job`; the only place that opens an inventory's files.
"""
