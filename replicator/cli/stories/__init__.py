"""How stories of mailboxes and mails are told in a terminal."""
