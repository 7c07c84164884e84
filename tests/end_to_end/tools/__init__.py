"""Tests of what `benchmarks` gives to other tests and to people: the proxy, the demo and the comparison."""
