"""IMAP sessions over a cluster whose links break: nothing that a client is told may mislead it.

`told` has the model of one client, which knows nothing but what the server has said; `facts` holds what all clients of
a node have been told against each other; `searches` evaluates searches over what a client knows; `notified` has what a
client wishes to hear by NOTIFY. `session` sends the commands, and `world` carries out the steps that Hypothesis draws.
"""
