"""The report of a run: figures as a table, as JSON and in docs/figures.md.

Used by `figures`, which make its rows, and by the programs that print it.
"""
