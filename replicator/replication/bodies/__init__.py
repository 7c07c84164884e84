"""Message bodies at this node: upload from clients, download from peers, reading, retention and repair.

`body_store` is what others use. Knows links alone.
"""
