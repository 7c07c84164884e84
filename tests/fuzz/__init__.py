"""Hostile input for each parser of a node: `make fuzz` (docs/testing.md, "Fuzzing").

`target` says what a target is, and `targets` lists them: one module for each door. `test_targets` tries each a little
in `make test`. `__main__` shares the time out and reports; `guided` fuzzes one target in a process of its own.
"""
