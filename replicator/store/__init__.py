"""The node's disk: the log, its two projections and the message bodies, in one SQLite database and an attachment store.

Packages, from the lowest: `attachments` stores files; `bodies` assembles bodies from attachments and recipes; `db` has
the tables, the single writer and all queries; `checkpoints` and `gc` stand beside the log; `log` makes and applies
entries; `repair` finds and repairs damage; `inventory` writes Parquet. `store` is what the rest of the node uses. No
entry leaves this package before it is on disk.
"""
