"""Pairs of servers that replicate to each other, ours and others', under the same loads: `make bench-peers`.

A module for each kind of pair behind the interface of `pair`; the loads know that interface only.
"""
