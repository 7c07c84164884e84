"""The figures of clusters on this machine, each beside the physical floor measured in the same run, and `make demo`.

Real node processes, real sockets, real disk. Nothing of the project is imported here, so that what is measured is what
an operator gets; but `traffic` decodes what travels with the project's own decoder, and `prepared` fills databases with
its store. Everything runs on loopback under
one temporary directory, which goes when the run ends.
"""
