"""Who may connect and log in: STARTTLS, passwords, and limits on connections and commands."""
