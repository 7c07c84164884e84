"""Stories for operators: the history of mailboxes and mails (docs/operations.md, "Why is this mail ...").

The HTTP door uses `Stories`. Nothing here changes anything.
"""
