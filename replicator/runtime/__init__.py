"""Helpers that any part of a node may use, independent of replication.

`environment` gives time, randomness, threads and the disk, so that a simulation can replace them; `signals` wakes
tasks; `objects` keeps files in a directory or an S3 bucket. Of connections: `addresses`, and `places` at a door.
`sizes` parses sizes and numbers that people write. Rooms: `files`, `logs`, `metrics` and `process`.
"""
