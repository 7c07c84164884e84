"""The wire between nodes: its grammar, values, commands and codec.

The package turns bytes into typed commands and back. It does no I/O, reads no clock and knows nothing of mailboxes, and
it imports from no other package of the project. `lexical.lark` and `framing` are also the lexical layer of the IMAP
door, so both text protocols share one definition of atoms, strings, literals and limits.
"""
