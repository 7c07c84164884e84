"""The effects of log entries: the sequencer makes entries, `apply` carries them out, `replay` and `forks` reread them.

The functions run in jobs of the writer and in the readers beside it.
"""
