"""The wire between nodes: its grammar, values, commands and codec.

Bytes come in, typed commands go out, and back. Nothing here does I/O, reads a clock or knows a mailbox;
nothing here may import from the other packages. `lexical.lark` and `framing` are also the lexical layer of
the IMAP door, so both text protocols share one idea of atoms, strings, literals and limits.
"""
