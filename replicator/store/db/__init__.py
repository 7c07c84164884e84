"""The database: tables, the single writer, transactions, queries, and the mailbox views updated after each commit.

The rest of the store builds on this package; the rest of the node reaches it through `store.store`.
"""
