"""Databases that earlier versions of the program have written, one for each schema that a node upgrades; and a program.

Each was written by the last version that had the schema, by `write.py`. Before a version changes the schema, it writes
its own: `python -m tests.earlier_databases.write`.

The program is that of an earlier commit. It runs in a cluster with today's.
"""
