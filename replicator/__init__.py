"""One node: a whole mail store that replicates itself.

`node` puts the parts together; `imap`, `lmtp` and `http` are its doors and know only `mailstore`; `replication`
numbers, ships and forwards changes; `store` is the disk. Rules without I/O live in the packages beside this one.
"""
