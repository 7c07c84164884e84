"""Access to the server: STARTTLS, passwords, and limits on connections and commands."""
