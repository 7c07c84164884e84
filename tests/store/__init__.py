"""Tests of one node's disk, in folders as `replicator/store` has them."""
