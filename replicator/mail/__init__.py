"""Mail as doors see it: what they may ask of the node, mailboxes and folders in memory, and names that clients give.

`mailstore` is the one interface between the doors and all below them. `view` is a mailbox in memory, `watched_folders`
a user's folders, `folder_watch` tells sessions of changes in these. `listing` has all messages of a mailbox for a
comparison, in `rows`, which go on in a `scratch` file; `compact_uids` are sets of UIDs. `flags` and `annotations` check
the names and sizes of what clients set.
"""
