"""The node's disk: the log, its two projections and the message bodies, in one SQLite database and an attachment store.

Rooms, from the lowest: `attachments` are files; `bodies` are made of them and of recipes; `db` has the tables, the one
writer and all queries; `checkpoints` and `gc` stand beside the log; `log` makes and applies entries; `repair` finds and
mends damage; `inventory` writes Parquet. `store` is what the rest of the node uses. No entry leaves this package before
it is on disk.
"""
