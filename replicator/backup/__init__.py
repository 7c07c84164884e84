"""Backups: a copy of what a node has, made from its files while it runs or not, and put back while it does not run.

A backup is a directory or a prefix in a bucket. `manifest` says what is in it, `places` writes and reads it there,
`database` has the SQL, `attachments` the way to the attachment store; `making` and `restoring` do the two things. Used
by the command line, in its own process; nothing of a running node knows of it.
"""
