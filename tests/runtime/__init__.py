"""`replicator.runtime`: time, randomness, signals between tasks, addresses, log fields."""
