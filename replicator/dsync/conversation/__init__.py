"""A sync step by step, over a connection to the other side and the mail of one user.

`master_session`: this side begins it. `remote_session`: the peer does.
"""
