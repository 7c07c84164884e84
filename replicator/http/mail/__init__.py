"""Routes of a user's mail: folders, and mail to take away."""
