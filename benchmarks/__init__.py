"""The figures of clusters on this machine, each beside the physical floor measured in the same run, and `make demo`.

Real node processes, real sockets, real disk. What is measured is what an operator gets: the project is imported only
by `traffic`, which decodes what travels, and by `prepared`, which fills databases with the node's own store. Everything
runs on loopback under one temporary directory, which goes when the run ends.
"""
