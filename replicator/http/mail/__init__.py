"""Routes of a user's mail: folders, mail to take away and to remove, what imports keep, and what has happened to it."""
