"""A seed from its plan to its verdict: the faults, the run, and the search for a smaller plan that fails alike.

The commands `soak` and `breakages` use it.
"""
