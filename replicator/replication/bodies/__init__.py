"""Message bodies at this node: upload from clients, download from peers, reading, retention and repair.

Other packages use `body_store`. This package depends on `links` and `parallel` alone.
"""
