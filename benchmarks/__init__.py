"""Performance figures of clusters on this machine, each beside the physical floor of the same run, and `make demo`.

The benchmarks use real node processes, real sockets and a real disk, and measure what an operator gets. Those of
clusters drive the nodes from outside, except that `figures.traffic` decodes the protocol and `clusters.prepared` fills
databases with the node's own store; those of the attachment store and of Spark call the project's functions. Everything
runs on loopback under one temporary directory, which is removed when the run ends.
"""
