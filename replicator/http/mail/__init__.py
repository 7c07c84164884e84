"""Routes of a user's mail: folders."""
