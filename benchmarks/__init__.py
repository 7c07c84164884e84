"""The figures of a three-node cluster on this machine, each beside the physical floor measured in the same run.

Real node processes, real sockets, real disk; nothing of the project is imported here, so that what is measured is
what an operator gets. Everything runs on loopback under one temporary directory, which goes when the run ends.
"""
