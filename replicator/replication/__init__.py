"""Replication between nodes, and the replicated mail store for clients.

Its folders, from the lowest layer: `links` carries commands; `mastership` knows each mailbox's master; `bodies` moves
message bodies; `writes` brings a change to its master and to enough disks; `log` ships entries, and `checkpoints`
truncates the log; `convergence` joins forked branches; `startup` decides what a fresh node may serve; `tasks` and
`rebuild` carry out operators' requests. `coordinator` puts them together, `peer_requests` answers other nodes,
`cluster_mail_store` is the interface for the doors; `node_status` reports to operators and `node_metrics` to
Prometheus. Only the store's writer numbers changes, and nothing is sent that is not on disk.
"""
