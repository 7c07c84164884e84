"""Whole clusters in virtual time, drawn from seeds, with faults: see docs/testing.md.

Each of these uses only those that follow it: `soak` and `breakages` (commands), `campaign`, `clients`, `world` and
`scenario`, `checks`, `machine`, `records`, `runtime`, `plan`.
"""
