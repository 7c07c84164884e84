"""IMAP commands: the grammar (`imap.lark`), its parser, and the typed commands that `builders/` make of it."""
