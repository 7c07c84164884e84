"""Doors in processes of their own: work for clients that need not be in the core process uses further CPU cores.

    core/       the core's side: starts the doors' processes, watches and replaces them, and answers their calls
    door/       the door's side: the program of such a process, and the node's mail as it has it
    both_ends/  one service in one module, with its end in the core and its end in the door
    channel     the connection between the two, on which both call each other; `packing`: values on it
    order       what the core tells a door's process to be
    interface   the parts of the program that both must have in common

The core process listens; a door's process inherits the listening sockets and accepts from them. All that a door asks
of the node goes over one connection, but for what it reads from the node's database. Nothing here knows how the node
replicates.
"""
