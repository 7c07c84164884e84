"""How nodes that show different things become equal: forks, state transfer, SYNC, and entries that wait too long.

The coordinator and the tasks run it (design sections 3 and 7).
"""
