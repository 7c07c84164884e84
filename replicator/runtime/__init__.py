"""Helpers that any part of a node may use, independent of replication.

`environment` gives time, randomness, threads and the disk, so that a simulation can replace them; `signals` wakes
tasks. On disk: `objects` keeps files in a directory or an S3 bucket, `line_files` edits files that people edit,
too, `file_modes` has the modes of files, `disk_room` the space that stays free. Of connections: `addresses`, and
`places` at a door. For operators: `metrics`, `loop_watch`, `log_fields`, `log_lines`. Of the process: `own_program`,
`garbage`. `sizes` parses sizes and numbers that people write.
"""
