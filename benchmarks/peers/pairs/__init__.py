"""Each kind of pair, a module each, behind the interface of `pair`."""
