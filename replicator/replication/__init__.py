"""Replication between nodes, and what clients' changes need of it.

Rooms, each with its own `__init__`, from the lowest: `links` carries commands; `mastership` knows who numbers what;
`bodies` moves message texts; `writes` brings a change to its master and to enough disks; `log` and `checkpoints` ship
entries and end the log; `convergence` joins what has forked; `startup` says what a fresh node may serve; `tasks` and
`rebuild` do what operators ask for. `coordinator` puts them together, `mail_store` is what the doors see of them,
`node_status` what operators see. Only the store's writer numbers anything, and nothing is sent that is not on disk.
"""
