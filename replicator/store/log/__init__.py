"""What entries do: the sequencer makes them, `apply` carries them out, `replay` and `forks` read them again.

Jobs of the writer and readers beside it call it.
"""
