"""The page for operators: `files` has what a browser is sent, `routes` sends it, `events` tells how the node is.

The page shows what the JSON API answers, and needs no other server and nothing that is built.
"""
