"""Stories of mailboxes and mails as text for a terminal."""
