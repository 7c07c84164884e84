"""The log: fields of its events, and the form of its lines."""
