"""The figures of `make bench`, one scenario a module, with their sizes (`scale`).

Used by `python -m benchmarks` alone, which names them; no scenario uses another one. Those of large messages and of
attachments are in `large_bodies`.
"""
