"""Services of the core for doors, each with both ends in one module.

`mail_feed` is what the core tells of changes, and the views at the door that follow it; `uploads` are bodies on their
way to the core; `users`, `places` and `metrics` are the node's, of which all doors have a share.
"""
