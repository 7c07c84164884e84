"""Hostile input for the parsers of a node and for the links of real nodes: `make fuzz` (docs/testing.md, "Fuzzing").

`target` says what a target is, and `targets` lists those that are parsers: one module for each door. `links` plays
rounds with real nodes. `__main__` shares the time out and reports; `guided` fuzzes one parser in a process of its own.
`test_targets` tries each parser a little in `make test`.
"""
