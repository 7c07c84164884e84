"""A message body on disk: its recipe, its attachments, and the rows that name both.

Below the database: transactions and replication's bodies use it.
"""
