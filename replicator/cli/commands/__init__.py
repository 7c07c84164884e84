"""The commands, one module each, loaded when the command is used (`command_list` says where each one is).

`nodes` runs nodes and manages running ones, `monitoring` shows what they do, `credentials` writes the files by which
people and nodes prove who they are, `mail` is for the mail of one user, and `repair` finds and mends damage and
differences. No room uses another one.
"""
