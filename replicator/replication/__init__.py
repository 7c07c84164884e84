"""Keeping the nodes the same: links, masters, shipping, forwarding.

`connections` makes and watches links, `link` is one of them. `shipping` sends the log over a link by its own
cursor, `receiving` takes it in. `mastership` knows who numbers what; `operations` are the changes that clients ask
for, which `coordinator` brings to their master. `service` is the mail store that the doors see. Only the writer of
the store numbers anything, and nothing is sent that is not on disk.
"""
