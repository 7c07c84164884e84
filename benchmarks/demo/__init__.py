"""`make demo`: what happens to mail when the links between data centres break, shown with real nodes and real clients.

`story` acts and narrates; `clients` asks the nodes by IMAP and LMTP what they show; `account` compares that, without
I/O, and finds what conflicted, what became of it, and whether every promise was kept. What is printed was asked of the
nodes; a promise that was broken ends the demo with exit code 1.
"""
