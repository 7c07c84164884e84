"""The node's disk: the mutation log, its two projections and the content, in one SQLite database.

`writer` is the only one that writes; it turns many requests into one transaction and one fsync. `numbering` makes
new entries on top of a head, `apply` carries entries into the projections, both inside the writer's transaction;
`reading` reads beside it. `store` is what the rest of the node uses. No entry leaves this package before it is on
disk, and nothing but `apply` may write to the projections.
"""
