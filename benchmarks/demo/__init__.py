"""`make demo`: the effects of broken links between data centres on mail, shown with real nodes and real clients.

`story` acts and narrates; `clients` asks the nodes by IMAP and LMTP for what they show; `account` compares that,
without I/O, and finds the conflicts, their outcomes, and whether every promise was kept. Everything printed was asked
of the nodes; a broken promise ends the demo with exit code 1.
"""
