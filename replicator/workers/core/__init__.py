"""Doors' processes as the core has them.

`processes` opens, restarts and replaces them, and is what `replicator.node` uses; `door_process` is one of them;
`mail` answers its calls about mail.
"""
