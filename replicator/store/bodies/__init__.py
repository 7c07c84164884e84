"""Message bodies on disk: a body's recipe, its attachments, and the rows that reference both.

This package is below the database: transactions and replication's bodies use it.
"""
