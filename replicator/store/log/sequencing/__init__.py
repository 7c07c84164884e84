"""Numbering, at a master: a request becomes an entry on top of the head that this node shows (design section 3).

`sequencer` numbers changes of mail, `folder_sequencer` those of a user's tree of folders, by `numbering`. Each function
runs as one job of the writer.
"""
