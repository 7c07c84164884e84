"""What a node that has just started may serve, and when (design section 7).

The coordinator and the rebuild use it.
"""
