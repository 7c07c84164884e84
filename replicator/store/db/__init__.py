"""The database: its tables, the one writer, transactions, queries, and the views that follow each commit.

All of the store stands on it; the rest of the node reaches it through `store.store`.
"""
