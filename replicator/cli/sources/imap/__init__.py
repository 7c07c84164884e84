"""Accounts of IMAP servers as sources of mail: `urls`, `connection`, `values` (answers), `account`, `folder`."""
