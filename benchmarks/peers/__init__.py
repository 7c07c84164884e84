"""Pairs of servers that replicate to each other, ours and others', under the same loads: `make bench-peers`."""
