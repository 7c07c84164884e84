"""The effects of log entries: `sequencing` makes entries, `apply` carries them out, `replay` and `forks` reread them.

`snapshot_install` steps to a state without its entries; `gaps`, `entry_removal` and `pending_resync` are about what the
log has no more. The functions run in jobs of the writer and in the readers beside it.
"""
