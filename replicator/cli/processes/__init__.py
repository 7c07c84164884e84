"""Nodes as processes: this one, or the children of `replicator cluster run`."""
