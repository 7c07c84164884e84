"""The story of a mailbox or a folder tree: what the entries of its history did, in values that people can be shown.

All functions take entries oldest first, each after those of its predecessors that are given. What the given entries do
not tell is reported as not known.

- `places`: where messages were before and after each entry;
- `deeds`: what one entry did;
- `lives`: what happened to one message;
- `parts`: the part of an entry that one story needs;
- `branches`: which entries were made without knowledge of each other, and what joined them.
"""
