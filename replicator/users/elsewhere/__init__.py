"""Users whom a server elsewhere knows.

`source` says what such a server is asked, `look_ups` asks it, `answers` keeps what it said for a while, and `directory`
is what the doors see. Nothing here connects to a server: `replicator.user_sources` does.
"""
