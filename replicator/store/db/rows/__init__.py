r"""Rows of some tables as values: messages, `\Recent`, and what nodes say they have settled."""
