"""Performance figures of clusters on this machine, each beside the physical floor of the same run, and `make demo`.

The benchmarks use real node processes, real sockets and a real disk, and measure what an operator gets. The project is
imported only by `traffic`, which decodes the protocol, and by `prepared`, which fills databases with the node's own
store. Everything runs on loopback under one temporary directory, which is removed when the run ends.
"""
